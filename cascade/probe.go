package cascade

import (
	"context"
	"slices"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
)

// Probe returns the longest cached prefix of a chain of keys, head first, of
// all ranks. It leases nothing, and is an access only once a block of the chain is got or put:
// then it is one of all of them (see residency.Requests.LookedUp). The first blocks of
// the prefix that are elsewhere are brought here: what other ranks have is on its
// way when it returns, what is in files soon after.
func (s *Store) Probe(ctx context.Context, ns string, keys []string) ProbeResult {
	c := s.probe(ctx, ns, keys)
	c.prefetch(s, len(keys))
	return c.res
}

// probe looks up a chain, and brings nothing here.
func (s *Store) probe(ctx context.Context, ns string, keys []string) *chain {
	c := lookUp(ctx, s, ns, keys)
	s.state.Count.Lookups(ns, min(c.res.Hits+1, len(keys)), c.res.Hits)
	c.estimateLoads(s)
	s.state.Requests.LookedUp(ns, keys)
	return c
}

// chain is what was found of one.
type chain struct {
	ns   string
	keys []string
	here []presence
	hits []others.Hit // of the keys that are not here, in order
	res  ProbeResult

	runs  []estimate.Run // of res, for package estimate
	lines []estimate.Line
}

func lookUp(ctx context.Context, s *Store, ns string, keys []string) *chain {
	c := &chain{ns: ns, keys: keys, res: ProbeResult{Tiers: map[string]int{}}}
	if s.here.unanswered(ctx, len(keys)) {
		return c
	}
	c.here = s.here.probe(ns, keys)
	if s.others.AsksElsewhere() {
		if missing := absent(keys, c.here); len(missing) > 0 {
			c.hits = s.others.Probe(ctx, ns, missing)
		}
	}
	hits := c.hits
	for i := range keys {
		if c.here[i].tier != "" {
			c.res.add(c.here[i].tier, c.here[i].size)
			continue
		}
		if len(hits) == 0 || !hits[0].Found {
			break
		}
		c.res.add(s.others.ServedFrom(hits[0].Copies), hits[0].Size)
		hits = hits[1:]
	}
	for _, r := range c.res.Runs {
		c.res.Tiers[r.Tier] += r.Hits
	}
	return c
}

// prefetch starts to bring here what is elsewhere of the first n keys, or of those that are cached,
// and returns how many keys these are.
func (c *chain) prefetch(s *Store, n int) int {
	n = min(n, c.res.Hits)
	hits := c.hits
	coming := load.NewPrefetch(c.ns, len(hits))
	for i := range n {
		if c.here[i].tier == "" {
			coming.Add(c.keys[i], hits[0])
			hits = hits[1:]
		}
	}
	s.load.StartPrefetch(coming)
	return n
}

// add adds the next key of a chain.
func (r *ProbeResult) add(tier string, size int64) {
	if n := len(r.Runs); n == 0 || r.Runs[n-1].Tier != tier {
		r.Runs = append(r.Runs, Run{Tier: tier})
	}
	last := &r.Runs[len(r.Runs)-1]
	last.Hits++
	last.Bytes += size
	r.Hits++
	r.Bytes += size
}

// presence is what this rank has of a key; no tier: nothing.
type presence struct {
	tier string
	size int64
}

// absent lists the keys of which this rank has nothing.
func absent(keys []string, here []presence) (missing []string) {
	if !slices.ContainsFunc(here, func(p presence) bool { return p.tier != "" }) {
		return keys
	}
	for i, p := range here {
		if p.tier == "" {
			missing = append(missing, keys[i])
		}
	}
	return missing
}
