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
// in a shortage, the rank inherits what has ended as it needs the space: those
// blocks then stand with its own in the order in which blocks leave. Guarded by the
// store's mutex.
type Orphans struct {
	Left        []orphan // by age, the oldest first
	taken       map[tiers.Part]bool
	othersUsage int64 // bytes of live runs of other jobs
	runs        int   // of those
	settling    bool  // something is being inherited
	inherited   uint64
}

// bequest is a part that nobody owns any more.
type orphan struct {
	Part  tiers.Part
	bytes int64
}

// Untaken leaves out the parts that were inherited: they are this rank's own.
func (cs *Space) Untaken(parts []tiers.Part) []tiers.Part {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(parts), func(p tiers.Part) bool { return cs.guarded.Orphans.taken[p] })
}

// SetOrphans notes what a round found.
func (cs *Space) SetOrphans(parts []tiers.Part, left []tiers.Left) {
	if len(parts) != len(left) {
		return
	}
	var beside int64
	runs := 0
	if cs.state.Cold != nil {
		beside, runs = cs.state.Cold.Files.OthersUsage()
	}
	var all []orphan
	for i, l := range left {
		if l.Ended {
			all = append(all, orphan{parts[i], l.Bytes})
		} else {
			beside += l.Bytes
			runs++
		}
	}
	slices.SortFunc(all, func(a, b orphan) int { return cmp.Compare(a.Part.Incarnation, b.Part.Incarnation) })
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	cs.guarded.Orphans.Left, cs.guarded.Orphans.othersUsage, cs.guarded.Orphans.runs = all, beside, runs
	cs.state.WakeCleanerLocked(false)
}

// shareLocked is what the policy gets of the estate. In a shortage what this
// rank may take, and what is left, is all there is.
func (cs *Space) shareLocked() policy.Estate {
	e := policy.Estate{
		Budget: cs.state.Limits.Load().ColdBytes, Beside: cs.guarded.Orphans.othersUsage, Runs: cs.guarded.Orphans.runs, Young: cs.state.Cold.Bytes - cs.state.Cold.Old, Fill: coldFill,
	}
	short := cs.guarded.LowSpace.Limit()
	for _, b := range cs.guarded.Orphans.Left {
		e.Left = append(e.Left, b.bytes)
		short += b.bytes
	}
	if cs.guarded.LowSpace.Limit() > 0 && (e.Budget == 0 || short < e.Room()) {
		e.Budget, e.Beside, e.Runs = short, 0, 0
	}
	return e
}

// coldBudgetLocked is how many bytes the cold tier may take for this rank's own
// at the moment; 0 is no limit.
func (cs *Space) coldBudgetLocked() int64 {
	e := cs.shareLocked()
	if e.Budget == 0 {
		return 0
	}
	return max(1, e.Own())
}

// inheritDeadline bounds the taking over of what is due.
const inheritDeadline = 2 * time.Minute

// AdoptDue inherits what the budget asks for. A part that does not come is left
// alone, and not counted, until the next round finds it again. Nothing leaves the
// cold tier meanwhile, for what follows on what is not clear yet.
func (cs *Space) AdoptDue(ctx context.Context) {
	due := cs.due()
	if len(due) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, inheritDeadline)
	defer cancel()
	for _, b := range due {
		done, inherited, err := cs.AdoptOrphan(within, b.Part)
		if inherited {
			cs.state.Log.Info("inherited for its space", "of", b.Part.Rank, "incarnation", b.Part.Incarnation, "file_bytes", b.bytes,
				"blocks", done.Blocks, "names", done.Names)
		}
		cs.state.Mu.Lock()
		if err != nil && ctx.Err() == nil {
			cs.state.NoteColdLocked(err)
		}
		cs.guarded.Orphans.Left = slices.DeleteFunc(cs.guarded.Orphans.Left, func(l orphan) bool { return l.Part == b.Part })
		if inherited {
			cs.guarded.LowSpace.Grow(b.bytes)
		}
		cs.state.Mu.Unlock()
	}
	cs.KeepHeads(false)
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	cs.guarded.Orphans.settling = false
	cs.state.WakeCleanerLocked(false)
}

// KeepHeads counts as used the chains that an earlier run left and names that the
// catalogue has, of other parts, go on with: their ends here would leave, and leave
// holes. With fresh only names that are new to the catalogue are looked at.
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
		for n := cs.state.Mu.Names.Get(st.Name.Namespace, st.Name.Parent); n != nil && n.Block() != nil && residency.StateOf(n).Below.Old; n = n.Parent() {
			cs.state.Cold.UsedLocked(residency.StateOf(n))
			chain = append(chain, policy.Ref{Fingerprint: cs.state.Requests.FingerprintLocked(residency.StateOf(n)), Size: residency.StateOf(n).Info.Size, Node: residency.StateOf(n).Below.Node})
		}
		if len(chain) > 0 {
			slices.Reverse(chain) // head first
			cs.state.Requests.Pass(cs.state.Cold.Policy, cs.state.Age(), chain, false)
		}
	})
}

// due is what is to be inherited now, nothing while something is. If there is
// anything the estate is settling from then on.
func (cs *Space) due() []orphan {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	if !cs.state.RanksColdLocked() || cs.state.Mu.Closed || cs.guarded.Orphans.settling {
		return nil
	}
	due := slices.Clone(cs.guarded.Orphans.Left[:cs.shareLocked().Take()])
	cs.guarded.Orphans.settling = len(due) > 0
	return due
}

// AdoptOrphan makes a part this rank's own and takes in what it holds. It is false
// while somebody owns it.
func (cs *Space) AdoptOrphan(ctx context.Context, p tiers.Part) (residency.RecoverStats, bool, error) {
	a := cs.others.NewAdoption()
	inherited, err := cs.state.Cold.Files.AdoptOrphan(ctx, p, a.Gather)
	if err == nil && inherited {
		cs.state.Mu.Lock()
		if cs.guarded.Orphans.taken == nil {
			cs.guarded.Orphans.taken = map[tiers.Part]bool{}
		}
		if !cs.guarded.Orphans.taken[p] {
			cs.guarded.Orphans.taken[p] = true
			cs.guarded.Orphans.inherited++
		}
		cs.state.Mu.Unlock()
		err = a.Run()
	}
	if err != nil {
		return a.Done, false, fmt.Errorf("cascade: inherit the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	return a.Done, inherited, nil
}

// OrphanStatsLocked is the estate at one moment; nil where it never mattered.
func (cs *Space) OrphanStatsLocked() *residency.OrphanStats {
	budget := cs.coldBudgetLocked()
	if budget == 0 && cs.guarded.Orphans.inherited == 0 {
		return nil
	}
	st := &residency.OrphanStats{
		Parts: len(cs.guarded.Orphans.Left), Runs: cs.guarded.Orphans.runs, RunBytes: cs.guarded.Orphans.othersUsage, Inherited: cs.guarded.Orphans.inherited, Budget: budget,
	}
	for _, b := range cs.guarded.Orphans.Left {
		st.Bytes += b.bytes
	}
	return st
}
