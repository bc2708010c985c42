package block

import "strings"

// CopyKeys returns copies of keys as strings that share one allocation: it lives as long as
// one of them does.
func CopyKeys[K string | []byte](keys []K) []string {
	total := 0
	for _, k := range keys {
		total += len(k)
	}
	var all strings.Builder
	all.Grow(total)
	switch keys := any(keys).(type) {
	case []string:
		for _, k := range keys {
			all.WriteString(k)
		}
	case [][]byte:
		for _, k := range keys {
			all.Write(k)
		}
	}
	text, copies := all.String(), make([]string, len(keys))
	for i, k := range keys {
		copies[i], text = text[:len(k)], text[len(k):]
	}
	return copies
}
