package args

import (
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
)

// TestTraffic: what each command does with which keys.
func TestTraffic(t *testing.T) {
	for line, want := range map[string]struct {
		kind    traffic.Kind
		chained bool
		ns      string
		parent  string
		keys    string // none: the command is not of interest
	}{
		"EXISTS a b":                                 {traffic.Looked, false, "db", "", "a b"},
		"EXISTS akv_bytes ametadata":                 {traffic.Looked, false, "db", "", "akv_bytes"},
		"GET ametadata":                              {},
		"GET a":                                      {traffic.Got, false, "db", "", "a"},
		"MGET a b":                                   {traffic.Got, false, "db", "", "a b"},
		"SET a value PX 5":                           {traffic.Put, false, "db", "", "a"},
		"CASCADE.GET a":                              {traffic.Got, false, "db", "", "a"},
		"CASCADE.GET NS ns a":                        {traffic.Got, false, "ns", "", "a"},
		"CASCADE.PROBE ns a b":                       {traffic.Looked, true, "ns", "", "a b"},
		"CASCADE.ADVISE ns 100 a b":                  {traffic.Looked, true, "ns", "", "a b"},
		"CASCADE.ADVISE ns PREFILL 9 KEYS a b":       {traffic.Looked, true, "ns", "", "a b"},
		"CASCADE.ADVISE ns PREFILL 9 a b":            {},
		"CASCADE.CONTAINS ns a b":                    {traffic.Looked, true, "ns", "", "a b"},
		"CASCADE.CONTAINS \x00contents a":            {},
		"CASCADE.GETSHM ns a b":                      {traffic.Got, true, "ns", "", "a b"},
		"CASCADE.PUT b value NS ns PARENT a":         {traffic.Put, true, "ns", "a", "b"},
		"CASCADE.PUT b value BOUND PARENT a":         {},
		"CASCADE.PUT b value NS":                     {},
		"CASCADE.ALIAS b id PARENT a":                {traffic.Put, true, "db", "a", "b"},
		"CASCADE.COMMIT 1 ns b PARENT a":             {traffic.Put, true, "ns", "a", "b"},
		"CASCADE.STORE 1 ns x PARENT a CHAIN KEYS b": {traffic.Put, true, "ns", "a", "b"},
		"CASCADE.STORE 1 ns x KEYS a b":              {traffic.Put, false, "ns", "", "a b"},
		"CASCADE.LOAD 1 ns x JOB 3 KEYS a b":         {traffic.Got, true, "ns", "", "a b"},
		"CASCADE.LOAD 1 ns x CHAIN KEYS a":           {},
		"DEL a":                                      {},
		"CASCADE.HINT ns DUE 0 KEYS a":               {},
		"CASCADE.PIN ns a":                           {},
	} {
		var words [][]byte
		for w := range strings.SplitSeq(line, " ") {
			words = append(words, []byte(w))
		}
		c, first, ok := Traffic(string(words[0]), "db", words, time.Now())
		if ok != (want.keys != "") {
			t.Errorf("%s: %v", line, ok)
		}
		if !ok {
			continue
		}
		keys := strings.Fields(want.keys)
		parent := uint64(0)
		if want.parent != "" {
			parent = block.Fingerprint(want.ns, want.parent)
		}
		if c.Kind != want.kind || c.Chained != want.chained || c.Namespace != want.ns || c.Parent != parent || string(first) != keys[0] ||
			!slices.Equal(c.Keys, block.Fingerprints(want.ns, keys...)) {
			t.Errorf("%s: %+v, first %q", line, c, first)
		}
	}
}
