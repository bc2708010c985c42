package args

import (
	"strings"
	"testing"
	"time"
)

func FuzzParseTransfer(f *testing.F) {
	for _, s := range []string{"KEYS a", "CHAIN PREFIX REPLACE PARENT p PX 5 JOB 7 KEYS a b", "JOB -1 KEYS a", "PARENT KEYS KEYS", "PX", "chain keys k"} {
		f.Add(s, true)
		f.Add(s, false)
	}
	now := time.Unix(1_800_000_000, 0)
	f.Fuzz(func(t *testing.T, line string, store bool) {
		var args [][]byte
		for _, w := range strings.Split(line, " ") {
			args = append(args, []byte(w))
		}
		o, keys, bad := ParseTransfer(args, store, now)
		if (bad == "") != (len(keys) > 0) {
			t.Fatalf("%d keys and %q", len(keys), bad)
		}
		if bad != "" {
			return
		}
		if !store && (o.Parent != "" || o.Chain || o.Prefix || o.Replace || !o.Expires.IsZero()) {
			t.Fatalf("a LOAD with %+v", o)
		}
		if o.Job < -1 || !o.Expires.IsZero() && !o.Expires.After(now) {
			t.Fatalf("%+v", o)
		}
		if n := len(args) - len(keys); !strings.EqualFold(string(args[n-1]), "KEYS") {
			t.Fatalf("keys begin behind %q", args[n-1])
		}
	})
}
