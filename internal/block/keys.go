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
	for _, k := range keys {
		switch k := any(k).(type) {
		case string:
			all.WriteString(k)
		case []byte:
			all.Write(k)
		}
	}
	text, copies := all.String(), make([]string, len(keys))
	for i, k := range keys {
		copies[i], text = text[:len(k)], text[len(k):]
	}
	return copies
}
