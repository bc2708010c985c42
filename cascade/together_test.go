package cascade

import (
	"fmt"
	"testing"
)

// requestKeys are the keys of one chain.
func requestKeys(chain, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("c", chain, ".", i)
	}
	return keys
}

// TestInferredParents: in a namespace where nobody names parents a key has the one that came
// before it where they were asked for, also when it is stored already; a restart keeps what
// was known when it was put.
func TestInferredParents(t *testing.T) {
	r := newRig(t, 32<<20, false)
	keys := requestKeys(0, 4)
	want := func(when, ns, key, parent string, depth uint32) {
		t.Helper()
		info, ok := r.Stat(t.Context(), ns, key)
		if !ok || info.Parent != parent || info.Inferred != (parent != "") || info.Depth != depth {
			t.Errorf("%s: %s of %s is %+v, want the parent %q", when, key, ns, info, parent)
		}
	}
	Asked(r.Store, "asked", keys)
	for i, k := range keys {
		r.put(Entry{Namespace: "asked", Key: k}, data(uint64(i), 1000))
		r.put(Entry{Namespace: "later", Key: k}, data(uint64(i), 1000))
		r.put(Entry{Namespace: "named", Key: k}, data(uint64(i), 1000))
	}
	r.put(Entry{Namespace: "named", Key: "x", Parent: keys[0]}, data(9, 1000))
	want("before anybody asked", "later", keys[2], "", 0)
	Asked(r.Store, "later", keys)
	Asked(r.Store, "named", keys)
	PutTogether(r.Store, "named", keys)
	for i, k := range keys {
		parent := ""
		if i > 0 {
			parent = keys[i-1]
		}
		want("asked, then put", "asked", k, parent, uint32(i))
		want("put, then asked", "later", k, parent, uint32(i))
		want("parents are named", "named", k, "", 0)
	}
	for ns, n := range map[string]uint64{"asked": 3, "later": 3, "named": 0} {
		if got := r.in(ns).Inferred; got != n {
			t.Errorf("%s: %d parents are inferred, want %d", ns, got, n)
		}
	}
	r.put(Entry{Namespace: "later", Key: keys[2]}, data(8, 1000))
	want("put again", "later", keys[2], keys[1], 2)
	r.crash()
	want("after a restart", "asked", keys[3], keys[2], 3)
	checkInvariants(t, r.Store)
}

// TestInferredChainsHaveNoHoles: what leaves memory first are the tails of chains, as if the
// clients had named parents; where nothing is known of the order, chains lose their heads.
func TestInferredChainsHaveNoHoles(t *testing.T) {
	const chains, blocks = 12, 16
	holes := func(asked bool) (n int) {
		r := newRig(t, 8<<20, false)
		for c := range chains {
			keys := requestKeys(c, blocks)
			if asked {
				Asked(r.Store, "ns", keys)
			}
			for i, k := range keys {
				r.put(Entry{Namespace: "ns", Key: k}, data(uint64(c*100+i), 60_000))
			}
		}
		for c := range chains {
			gone := false
			for _, k := range requestKeys(c, blocks) {
				_, here := r.Stat(t.Context(), "ns", k)
				if here && gone {
					n++
				}
				gone = gone || !here
			}
		}
		if r.Stats().Names == chains*blocks {
			t.Fatal("nothing has left")
		}
		checkInvariants(t, r.Store)
		return n
	}
	if n := holes(true); n > 0 {
		t.Errorf("%d blocks behind holes", n)
	}
	if holes(false) == 0 {
		t.Error("without the order there are no holes either: the test shows nothing")
	}
}
