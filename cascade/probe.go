package cascade

import (
	"context"
	"slices"

	"cascadekv/cascade/load"
	"cascadekv/cascade/others"
)

// Probe returns the longest cached prefix of a chain of keys, head first, of
// all ranks. It neither leases nor counts as an access, but the first blocks of
// the prefix that are elsewhere are brought here: what other ranks have is on its
// way when it returns, what is in files soon after.
func (s *Store) Probe(ctx context.Context, ns string, keys []string) ProbeResult {
	res := s.probe(ctx, ns, keys)
	s.state.Count.Lookups(ns, min(res.Hits+1, len(keys)), res.Hits)
	return res
}

func (s *Store) probe(ctx context.Context, ns string, keys []string) ProbeResult {
	res := ProbeResult{Tiers: map[string]int{}}
	if s.here.unanswered(ctx, len(keys)) {
		return res
	}
	here := s.here.probe(ns, keys)
	var hits []others.Hit // of the keys that are not here, in order
	if s.others.AsksElsewhere() {
		if missing := absent(keys, here); len(missing) > 0 {
			hits = s.others.Probe(ctx, ns, missing)
		}
	}
	coming := load.NewPrefetch(ns, len(hits))
	run := tierRun{to: &res}
	for i := range keys {
		if here[i].tier != "" {
			run.add(here[i].tier, here[i].size)
			continue
		}
		if len(hits) == 0 || !hits[0].Found {
			break
		}
		run.add(s.others.ServedFrom(hits[0].Copies), hits[0].Size)
		coming.Add(keys[i], hits[0])
		hits = hits[1:]
	}
	run.end()
	s.load.StartPrefetch(coming)
	return res
}

// tierRun counts hits one after the other in the same tier before it adds them
// to a result, whose map costs more than the look-up of a name.
type tierRun struct {
	to   *ProbeResult
	tier string
	hits int
}

func (r *tierRun) add(tier string, size int64) {
	if tier != r.tier {
		r.end()
		r.tier, r.hits = tier, 0
	}
	r.hits++
	r.to.Hits++
	r.to.Bytes += size
}

func (r *tierRun) end() {
	if r.hits > 0 {
		r.to.Tiers[r.tier] += r.hits
	}
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
