package cascade

import (
	"testing"
	"time"
)

// in is one namespace's part of the statistics.
func (r *rig) in(ns string) NamespaceStats {
	for _, n := range r.Stats().Namespaces {
		if n.Name == ns {
			return n
		}
	}
	return NamespaceStats{}
}

// TestLooksAreCounted holds every way of looking for names to what it adds.
func TestLooksAreCounted(t *testing.T) {
	r := newRig(t, 8<<20, false)
	ctx := t.Context()
	for _, k := range []string{"a", "b"} {
		r.put(ns(k), data(uint64(len(k)), 100))
	}
	get := func(ns, key string) {
		if v, _ := r.Get(ctx, ns, key); v != nil {
			v.Release()
		}
	}
	keys := []string{"a", "b", "x", "a"}
	var bytes [][]byte
	for _, k := range keys {
		bytes = append(bytes, []byte(k))
	}
	for name, c := range map[string]struct {
		do                           func(ns string)
		lookups, found, hits, misses uint64
		elsewhere                    uint64 // look-ups in a namespace that has nothing
	}{
		"a probe looks up to the first that is missing": {func(ns string) { r.Probe(ctx, ns, keys) }, 3, 2, 0, 0, 1},
		"a probe of what is there":                      {func(ns string) { r.Probe(ctx, ns, keys[:2]) }, 2, 2, 0, 0, 1},
		"a probe of nothing":                            {func(ns string) { r.Probe(ctx, ns, nil) }, 0, 0, 0, 0, 0},
		"Contains":                                      {func(ns string) { r.Contains(ctx, ns, "a"); r.Contains(ctx, ns, "x") }, 2, 1, 0, 0, 2},
		"ContainsBatch":                                 {func(ns string) { r.ContainsBatch(ctx, ns, bytes) }, 4, 3, 0, 0, 4},
		"Here.Contains":                                 {func(ns string) { r.Here().Contains(ns, bytes) }, 4, 3, 0, 0, 4},
		"Here.Lease":                                    {func(ns string) { r.Here().Lease(ns, bytes[:3], "me", time.Minute) }, 3, 2, 0, 0, 3},
		"Lease":                                         {func(ns string) { r.Lease(ctx, ns, "a", "me", time.Minute); r.Lease(ctx, ns, "x", "me", time.Minute) }, 2, 1, 0, 0, 2},
		"Renew":                                         {func(ns string) { r.Leases().Renew(ns, "a", "me", time.Minute) }, 0, 0, 0, 0, 0},
		"Get":                                           {func(ns string) { get(ns, "a"); get(ns, "x"); get(ns, "y") }, 0, 0, 1, 2, 0},
	} {
		before, all := r.in("ns"), r.Stats()
		c.do("ns")
		n, st := r.in("ns"), r.Stats()
		got := [4]uint64{n.Lookups - before.Lookups, n.Found - before.Found, n.Hits - before.Hits, n.Misses - before.Misses}
		whole := [4]uint64{st.Lookups - all.Lookups, st.Found - all.Found, st.Hits - all.Hits, st.Misses - all.Misses}
		if want := [4]uint64{c.lookups, c.found, c.hits, c.misses}; got != want || whole != want {
			t.Errorf("%s: look-ups, found, hits, misses are %v, in all %v, want %v", name, got, whole, want)
		}
		before = r.in("other")
		c.do("other")
		n = r.in("other")
		if got, misses := n.Lookups-before.Lookups, n.Misses-before.Misses; got != c.elsewhere || n.Found+n.Hits > 0 || misses != c.hits+c.misses {
			t.Errorf("%s where nothing is: %d look-ups, %d misses: %+v", name, got, misses, n)
		}
	}
	if n := r.in("ns"); n.Puts != 2 || n.Aliases != 0 || n.Recovered != 0 {
		t.Errorf("%+v", n)
	}
}

// TestAliases: the same content under another key of a namespace is told from
// the same under the same key, in another namespace, and from what is too small
// for a KV block. Blocks get their ids before or after the put is answered.
func TestAliases(t *testing.T) {
	for _, how := range []string{"at once", "later"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, 8<<20, false)
			put := func(ns, key string, size int) {
				t.Helper()
				e := Entry{Namespace: ns, Key: key}
				if how == "at once" {
					r.put(e, data(7, size))
				} else if err := r.stage(e, data(7, size)); err != nil {
					t.Fatal(err)
				}
				eventually(t, "ids are completed", func() bool { return r.Stats().PendingIDs == 0 })
			}
			want := func(ns string, puts, aliases uint64) {
				t.Helper()
				if n := r.in(ns); n.Puts != puts || n.Aliases != aliases {
					t.Errorf("%s: %d puts, %d aliases, want %d and %d", ns, n.Puts, n.Aliases, puts, aliases)
				}
			}
			put("one", "a", 5000)
			put("one", "a", 5000)
			put("two", "a", 5000)
			put("one", "small", 4095)
			put("one", "small too", 4095)
			want("one", 4, 0)
			want("two", 1, 0)
			put("one", "b", 5000)
			want("one", 5, 1)
			put("two", "b", 5000)
			want("two", 2, 1)
		})
	}
}

// TestRecoveredNamesAreCounted: of each namespace, when a store is opened.
func TestRecoveredNamesAreCounted(t *testing.T) {
	r := newRig(t, 8<<20, false)
	r.put(ns("a"), data(1, 100))
	r.put(Entry{Namespace: "other", Key: "a"}, data(2, 100))
	r.put(ns("b"), data(3, 100))
	r.crash()
	r.put(ns("c"), data(4, 100))
	if n, o := r.in("ns"), r.in("other"); n.Recovered != 2 || n.Puts != 1 || o.Recovered != 1 {
		t.Errorf("%+v, %+v", n, o)
	}
}
