package args

import (
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
)

func FuzzParseHint(f *testing.F) {
	for _, s := range []string{"KEYS a", "SHARED 2 DUE 30000 KEYS a b", "due 0 keys KEYS", "DUE 99999999999999 KEYS a", "SHARED -1 KEYS a", "DUE", "SHARED 3 KEYS"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var args [][]byte
		for _, w := range strings.Split(line, " ") {
			args = append(args, []byte(w))
		}
		h, keys, bad := ParseHint(args)
		if (bad == "") != (len(keys) > 0) {
			t.Fatalf("%d keys and %q", len(keys), bad)
		}
		if bad != "" {
			return
		}
		if h.Shared < 0 || h.Due < 0 || h.Due > maxDue || h.Soon && h.Due != 0 {
			t.Fatalf("%+v", h)
		}
		if n := len(args) - len(keys); n < 3 || !strings.EqualFold(string(args[n-1]), "KEYS") {
			t.Fatalf("keys begin behind %q", args[n-1])
		}
	})
}

func FuzzParseAdvise(f *testing.F) {
	for _, s := range []string{"1000 a", "auto KEYS", "PREFILL 1.5 SHARED 2 DUE 0 KEYS a b", "block 5 keys KEYS", "KEYS a", "PREFILL Inf KEYS a", "3600000001 a", "SHARED 1 KEYS"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var args [][]byte
		for _, w := range strings.Split(line, " ") {
			args = append(args, []byte(w))
		}
		if len(args) < 2 {
			return
		}
		ask, byWords, keys, bad := ParseAdvise(args)
		if (bad == "") != (len(keys) > 0) {
			t.Fatalf("%d keys and %q", len(keys), bad)
		}
		if bad != "" {
			return
		}
		if !byWords && (len(keys) != len(args)-1 || ask.Rate != 0 || ask.Hint != (cascade.Hint{})) {
			t.Fatalf("%+v of %d keys, as before", ask, len(keys))
		}
		if byWords && !strings.EqualFold(string(args[len(args)-len(keys)-1]), "KEYS") {
			t.Fatalf("%+v of %d keys", ask, len(keys))
		}
		if ask.PerBlock < cascade.Learned || ask.PerBlock > time.Hour || !(ask.Rate >= 0 && ask.Rate <= maxRate) {
			t.Fatalf("%+v", ask)
		}
	})
}

func FuzzParseTransfer(f *testing.F) {
	for _, s := range []string{"KEYS a", "GENERATED KEYS a", "CHAIN PREFIX REPLACE PARENT p PX 5 JOB 7 KEYS a b", "JOB -1 KEYS a", "PARENT KEYS KEYS", "PX", "chain keys k", "SHARED 1 DUE 0 KEYS a", "AFTER 32 4294967295 JOB 1 KEYS a", "AFTER 1 1 KEYS a", "JOB 1 AFTER 0 1 KEYS a"} {
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
		if !store && (o.Parent != "" || o.Chain || o.Prefix || o.Generated || o.Replace || !o.Expires.IsZero() || o.Hint != (cascade.Hint{})) {
			t.Fatalf("a LOAD with %+v", o)
		}
		if a := o.After; a.Word < 0 || a.Word > 32 || a.Word > 0 && o.Job < 0 {
			t.Fatalf("%+v", o)
		}
		if o.Job < -1 || !o.Expires.IsZero() && !o.Expires.After(now) {
			t.Fatalf("%+v", o)
		}
		if n := len(args) - len(keys); !strings.EqualFold(string(args[n-1]), "KEYS") {
			t.Fatalf("keys begin behind %q", args[n-1])
		}
	})
}

// TestGenerated: each command that stores a block takes the mark, and has none without it.
func TestGenerated(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	words := func(line string) (args [][]byte) {
		for w := range strings.SplitSeq(line, " ") {
			args = append(args, []byte(w))
		}
		return args
	}
	for _, mark := range []bool{false, true} {
		put, commit, store := "CASCADE.PUT k v NS ns", "PARENT p", "CHAIN"
		if mark {
			put, commit, store = put+" GENERATED", commit+" generated", store+" GENERATED"
		}
		e, bad := ParsePut(words(put), "", now)
		if bad != "" || e.Generated != mark || e.Namespace != "ns" {
			t.Errorf("%s: %+v %q", put, e, bad)
		}
		var c Commit
		if bad := c.Parse(words(commit), now); bad != "" || c.Entry.Generated != mark {
			t.Errorf("COMMIT %s: %+v %q", commit, c, bad)
		}
		if o, _, bad := ParseTransfer(words(store+" KEYS a"), true, now); bad != "" || o.Generated != mark {
			t.Errorf("STORE %s: %+v %q", store, o, bad)
		}
	}
	if _, _, bad := ParseTransfer(words("GENERATED KEYS a"), false, now); bad == "" {
		t.Error("a LOAD takes the mark")
	}
}
