package cascade

import (
	"context"
	"slices"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
)

// Probe returns the longest cached prefix of a chain of keys, head first, of
// all ranks. It leases nothing, and is an access only once a block of the chain is got or put:
// then it is one of all of them (see residency.Requests.LookedUp). The first blocks of
// the prefix that are elsewhere are brought here: what other ranks have, and what is in this
// rank's own files, is on its way when it returns, what is in other files soon after.
func (s *Store) Probe(ctx context.Context, ns string, keys []string) ProbeResult {
	c := s.probe(ctx, ns, keys, Hint{})
	c.prefetch(s, len(keys))
	load.PrefetchOwn(s.load, ns, keys[:c.res.Hits], false)
	return c.res
}

// probe looks up a chain, of which h is declared, and brings nothing here.
func (s *Store) probe(ctx context.Context, ns string, keys []string, h Hint) *chain {
	c := lookUp(ctx, s, ns, keys)
	s.state.Count.Lookups(ns, min(c.res.Hits+1, len(keys)), c.res.Hits)
	c.estimateLoads(s)
	s.state.Requests.LookedUp(ns, keys, h, func(i int) bool { return i < c.res.Hits })
	return c
}

// chain is what was found of one.
type chain struct {
	ns   string
	keys []string
	here []presence
	hits []others.Hit // of the keys that are not here, in order
	res  ProbeResult

	runs  []estimate.Run  // of res, for package estimate
	lines []estimate.Line // by which res was chosen; none where nothing was looked up
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
	cached := c.cached(s)
	if s.others.Peers != nil {
		c.askNearer(ctx, s, cached)
		c.askNearerCatalogued(ctx, s, cached)
	}
	c.lines = linesOf(s)
	for i, level := range estimate.Fastest(cached, c.lines) {
		c.res.add(tierOf(s, c.here[i].tier, level), cached[i].Bytes)
	}
	for _, r := range c.res.Runs {
		c.res.Tiers[r.Tier] += r.Hits
	}
	return c
}

// Levels that a chain is loaded from, as its estimates number them.
const (
	fromMemory = iota
	fromRemote
	fromDeep
	fromFiles
)

// cached lists the leading keys that are cached, each with the levels that have its block.
func (c *chain) cached(s *Store) (all []estimate.Copies) {
	hits := c.hits
	all = make([]estimate.Copies, 0, len(c.keys))
	for i := range c.keys {
		one := estimate.Copies{Levels: 1 << fromMemory, Bytes: c.here[i].size}
		switch c.here[i].tier {
		case "":
			if len(hits) == 0 || !hits[0].Found {
				return all
			}
			one = estimate.Copies{Bytes: hits[0].Size}
			remote, files := s.others.MayRead(hits[0].Copies)
			if remote {
				one.Levels |= 1 << fromRemote
			}
			if files {
				one.Levels |= 1 << fromFiles
			}
			hits = hits[1:]
		case s.state.ColdName():
			one.Levels = 1 << fromFiles
		case deepName(s):
			one.Levels = 1 << fromDeep
		}
		all = append(all, one)
	}
	return all
}

// askNearer adds to the levels of what lies in the cold tier here other ranks' memory, where it pays
// to ask for that: as a load of all of it does.
func (c *chain) askNearer(ctx context.Context, s *Store, cached []estimate.Copies) {
	keys, at, _ := c.toAsk(s, cached, c.inFiles)
	if len(keys) == 0 {
		return
	}
	for j, copies := range s.others.InMemory(ctx, c.ns, keys, s.here.infos(c.ns, keys)) {
		if copies != nil {
			cached[at[j]].Levels |= 1 << fromRemote
		}
	}
}

// askNearerCatalogued is askNearer of what the catalogue has, by the same rule as the get of all of it.
func (c *chain) askNearerCatalogued(ctx context.Context, s *Store, cached []estimate.Copies) {
	keys, at, hit := c.toAsk(s, cached, c.catalogued)
	if len(keys) == 0 {
		return
	}
	found := s.others.CataloguedUnasked(c.ns, keys)
	s.others.AddNearer(ctx, c.ns, keys, found)
	for j, copies := range found {
		if copies != nil && !others.FromCatalogue(copies) {
			cached[at[j]].Levels |= 1 << fromRemote
			c.hits[hit[j]].Copies = copies
		}
	}
}

// inFiles reports whether a key that is cached is of a block that this rank has in the cold tier
// alone.
func (c *chain) inFiles(one estimate.Copies, i, _ int) bool {
	return c.here[i].tier != "" && one.Levels == 1<<fromFiles
}

// catalogued reports likewise whether the catalogue alone has it: hit is its place among those
// that are not here.
func (c *chain) catalogued(_ estimate.Copies, i, hit int) bool {
	return c.here[i].tier == "" && (c.hits[hit].Copies == nil || others.FromCatalogue(c.hits[hit].Copies))
}

// toAsk returns copies of those of the keys that are cached for which is reports true, with their
// places and those among the keys that are not here, if it pays to ask other ranks for all of them.
func (c *chain) toAsk(s *Store, cached []estimate.Copies, is func(one estimate.Copies, i, hit int) bool) (keys []string, at, hits []int) {
	bytes, hit := int64(0), 0
	for i, one := range cached {
		if is(one, i, hit) {
			bytes, at, hits = bytes+one.Bytes, append(at, i), append(hits, hit)
		}
		if c.here[i].tier == "" {
			hit++
		}
	}
	if !s.others.PaysToAsk(bytes) {
		return nil, nil, nil
	}
	for _, i := range at {
		keys = append(keys, c.keys[i])
	}
	return block.CopyKeys(keys), at, hits
}

// deepName is the name of the memory level below that of the host; a name of none without one.
func deepName(s *Store) string {
	if d := s.state.Deep(); d != nil {
		return d.Stats.Name
	}
	return "\x00"
}

// tierOf names a level of a block that is in a tier here, "" for none.
func tierOf(s *Store, here string, level int) string {
	switch level {
	case fromRemote:
		return residency.RemoteTier
	case fromFiles:
		return s.state.ColdName()
	}
	return here
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
