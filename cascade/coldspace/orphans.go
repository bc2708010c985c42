package coldspace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/tiers"
)

// Orphans is what others left, or have, of the campaign's space. With a budget, and
// in low-space mode, the rank adopts what ended runs left as it needs the space:
// those blocks are then ranked with its own in the order in which blocks leave.
// Guarded by State.Mu.
type Orphans struct {
	Left        []orphan // by age, the oldest first
	adopted     map[tiers.Part]bool
	othersUsage int64 // bytes of live runs of other jobs
	runs        int   // of those
	adoptions   uint64
}

// orphan is a part that nobody owns any more.
type orphan struct {
	Part  tiers.Part
	bytes int64
}

// NotAdopted leaves out the parts that were adopted: they are this rank's own.
func (cs *Space) NotAdopted(parts []tiers.Part) []tiers.Part {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(parts), func(p tiers.Part) bool { return cs.guarded.Orphans.adopted[p] })
}

// SetOrphans records what a round of the catalogue found: left is parallel to parts.
func (cs *Space) SetOrphans(parts []tiers.Part, left []tiers.Left) {
	if len(parts) != len(left) {
		return
	}
	var usage int64
	runs := 0
	if cs.state.Cold != nil {
		usage, runs = cs.state.Cold.Files.OthersUsage()
	}
	var all []orphan
	for i, l := range left {
		if l.Ended {
			all = append(all, orphan{parts[i], l.Bytes})
		} else {
			usage += l.Bytes
			runs++
		}
	}
	slices.SortFunc(all, func(a, b orphan) int { return cmp.Compare(a.Part.Incarnation, b.Part.Incarnation) })
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	cs.guarded.Orphans.Left, cs.guarded.Orphans.othersUsage, cs.guarded.Orphans.runs = all, usage, runs
	cs.state.WakeCleanerLocked(false)
}

// shareLocked is what the policy gets of the budget and the orphans. In low-space
// mode what this rank may take, and the orphans, are all there is.
func (cs *Space) shareLocked() policy.Share {
	cs.state.Mu.AssertHeld()
	share := policy.Share{
		Budget: cs.state.Limits.Load().ColdBytes, OthersUsage: cs.guarded.Orphans.othersUsage, Runs: cs.guarded.Orphans.runs,
		Young: cs.state.Cold.Bytes - cs.state.Cold.Old, LiveShare: liveShare,
	}
	limit := cs.guarded.LowSpace.Limit()
	for _, o := range cs.guarded.Orphans.Left {
		share.Orphans = append(share.Orphans, o.bytes)
		limit += o.bytes
	}
	if cs.guarded.LowSpace.Limit() > 0 && (share.Budget == 0 || limit < share.Available()) {
		share.Budget, share.OthersUsage, share.Runs = limit, 0, 0
	}
	cs.addSpilledLocked(&share)
	return share
}

// coldBudgetLocked is how many bytes the cold tier may take for this rank's own
// at the moment; 0 is no limit.
func (cs *Space) coldBudgetLocked() int64 {
	share := cs.shareLocked()
	if share.Budget == 0 {
		return 0
	}
	return max(1, share.Own())
}

// adoptDeadline bounds one AdoptDue.
const adoptDeadline = 2 * time.Minute

// AdoptDue adopts the orphans that the budget asks for. A part that cannot be
// adopted is left alone, and not counted, until the next round finds it again.
// Nothing leaves the cold tier meanwhile: which chains go on in what is adopted is
// not clear yet.
func (cs *Space) AdoptDue(ctx context.Context) {
	due, spilled := cs.due()
	if len(due)+len(spilled) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, adoptDeadline)
	defer cancel()
	for _, o := range due {
		done, adopted, err := cs.AdoptOrphan(within, o.Part)
		if adopted {
			cs.state.Log.Info("adopted for its space", "of", o.Part.Rank, "incarnation", o.Part.Incarnation, "file_bytes", o.bytes,
				"blocks", done.Blocks, "names", done.Names)
		}
		cs.state.Mu.Lock()
		if err != nil && ctx.Err() == nil {
			cs.state.NoteColdLocked(err)
		}
		cs.guarded.Orphans.Left = slices.DeleteFunc(cs.guarded.Orphans.Left, func(l orphan) bool { return l.Part == o.Part })
		if adopted {
			cs.guarded.LowSpace.Grow(o.bytes)
		}
		cs.state.Mu.Unlock()
	}
	for _, f := range spilled {
		cs.Reload(within, f, Leave)
	}
	cs.KeepHeads(false)
	cs.loaded()
}

// KeepHeads counts as used the chains of an earlier run that continue in other
// ranks' segments, as the catalogue has them: otherwise evicting our part would break
// those chains. With fresh it looks only at names that are new to the catalogue.
// A catalogue that breaks meanwhile has no chains.
func (cs *Space) KeepHeads(fresh bool) {
	cs.state.Mu.Lock()
	none := cs.state.Cold.Old == 0
	cs.state.Mu.Unlock()
	if none {
		return
	}
	_ = cs.others.EachCatalogued(fresh, nil, func(st directory.Statement) {
		cs.state.Mu.Lock()
		defer cs.state.Mu.Unlock()
		var chain []policy.Ref
		for n := cs.state.Mu.Names.Get(st.Name.Namespace, st.Name.Parent); n != nil && n.Block() != nil && residency.BlockOf(n).Below.Old; n = n.Parent() {
			cs.state.Cold.UsedLocked(residency.BlockOf(n))
			chain = append(chain, policy.Ref{Fingerprint: cs.state.Requests.FingerprintLocked(residency.BlockOf(n)), Size: residency.BlockOf(n).Info.Size, Node: residency.BlockOf(n).Below.Node})
		}
		if len(chain) > 0 {
			slices.Reverse(chain) // head first
			cs.state.Requests.Pass(cs.state.Cold.Policy, chain, false)
		}
	})
}

// due returns the orphans to adopt and the spilled files to load now, none while others are
// loaded. If there are any, loaded must be called when they are.
func (cs *Space) due() ([]orphan, []tiers.SpilledFile) {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	if !cs.state.RanksColdLocked() || cs.state.Mu.Closed || cs.state.Cold.Loads > 0 {
		return nil, nil
	}
	n := cs.shareLocked().Adopt()
	spilled := cs.spilledDueLocked(n)
	due := slices.Clone(cs.guarded.Orphans.Left[:min(n, len(cs.guarded.Orphans.Left))])
	if len(due)+len(spilled) > 0 {
		cs.state.Cold.Loads++
	}
	return due, spilled
}

// AdoptOrphan makes a part this rank's own and adopts what it holds. It reports
// whether it did: not while somebody owns the part.
func (cs *Space) AdoptOrphan(ctx context.Context, p tiers.Part) (residency.RecoverStats, bool, error) {
	a := cs.others.NewAdoption()
	adopted, err := cs.state.Cold.Files.AdoptOrphan(ctx, p, a.Gather)
	if err == nil && adopted {
		cs.state.Mu.Lock()
		if cs.guarded.Orphans.adopted == nil {
			cs.guarded.Orphans.adopted = map[tiers.Part]bool{}
		}
		if !cs.guarded.Orphans.adopted[p] {
			cs.guarded.Orphans.adopted[p] = true
			cs.guarded.Orphans.adoptions++
		}
		cs.state.Mu.Unlock()
		err = a.Run()
	}
	if err != nil {
		return a.Done, false, fmt.Errorf("cascade: inherit the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	return a.Done, adopted, nil
}

// OrphanStatsLocked is the orphans' part of Stats; nil without a budget and adoptions.
func (cs *Space) OrphanStatsLocked() *residency.OrphanStats {
	cs.state.Mu.AssertHeld()
	budget := cs.coldBudgetLocked()
	if budget == 0 && cs.guarded.Orphans.adoptions == 0 {
		return nil
	}
	st := &residency.OrphanStats{
		Parts: len(cs.guarded.Orphans.Left), Runs: cs.guarded.Orphans.runs, RunBytes: cs.guarded.Orphans.othersUsage, Inherited: cs.guarded.Orphans.adoptions, Budget: budget,
	}
	for _, o := range cs.guarded.Orphans.Left {
		st.Bytes += o.bytes
	}
	return st
}
