package cascade

import (
	"context"
	"strings"

	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
)

// Probe returns the longest cached prefix of a chain of keys, head first, of
// all ranks. It neither leases nor counts as an access, but what other ranks
// have of the prefix is on its way here when it returns.
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
	var found [][]directory.Statement // of the keys that are not here, in order
	var missing []string
	if s.others.AsksElsewhere() {
		missing = absent(keys, here)
	}
	if len(missing) > 0 {
		found = s.others.Located(ctx, ns, missing)
	}
	var coming load.Prefetch
	run := tierRun{to: &res}
	for i := range keys {
		if here[i].tier != "" {
			run.add(here[i].tier, here[i].size)
			continue
		}
		if len(found) == 0 || found[0] == nil {
			break
		}
		run.add(s.others.ServedFrom(found[0]), found[0][0].Info.Size)
		coming.IDs = append(coming.IDs, residency.NameID{NS: ns, Key: missing[0]})
		coming.Copies = append(coming.Copies, found[0])
		found, missing = found[1:], missing[1:]
	}
	run.end()
	if len(coming.IDs) > 0 {
		s.load.StartPrefetch(&coming)
	}
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
	for i, p := range here {
		if p.tier == "" {
			missing = append(missing, strings.Clone(keys[i])) // it may outlive the request
		}
	}
	return missing
}
