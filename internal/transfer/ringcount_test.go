package transfer

import (
	"sync/atomic"

	"cascadekv/cascade/policy"
)

// policy is policy.New of one that counts what is asked for in ringRig.asked.
func (r *ringRig) policy(name string, capacity int64) (policy.Policy, error) {
	p, err := policy.New(name, capacity)
	return counted{p, &r.asked}, err
}

// counted counts the blocks of requests.
type counted struct {
	policy.Policy
	asked *atomic.Int64
}

func (c counted) Access(r *policy.Request) {
	if r.Hits > 0 {
		c.asked.Add(int64(len(r.Chain)))
	}
	c.Policy.Access(r)
}

// wantCounted fails unless so many blocks were asked for, each once, and so many of them were found, in the level of that number,
// and the others nowhere.
func (r *ringRig) wantCounted(asked, level, found int) {
	r.t.Helper()
	st := r.store.Stats()
	if n := r.asked.Load() / int64(len(st.Tiers)); n != int64(asked) {
		r.t.Errorf("the policies know of %d blocks that were asked for, want %d", n, asked)
	}
	hits, misses := st.Hits, st.Misses
	if hits != uint64(found) || hits+misses != uint64(asked) || st.Tiers[level].Hits != hits || st.Tiers[level].HitBytes != hits*ringBlock {
		r.t.Errorf("%d hits, of which %s has %d with %d bytes, and %d misses; want %d and %d",
			hits, st.Tiers[level].Name, st.Tiers[level].Hits, st.Tiers[level].HitBytes, misses, found, asked-found)
	}
	if ns := st.Namespaces; len(ns) != 1 || ns[0].Hits != hits || ns[0].Misses != misses {
		r.t.Errorf("%d hits, %d misses, and of namespaces %+v", hits, misses, ns)
	}
}
