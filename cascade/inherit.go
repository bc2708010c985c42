package cascade

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/tiers"
)

// estate is what others left, or have, of the campaign's space. With a budget, and
// in a shortage, the rank inherits what has ended as it needs the space: those
// blocks then stand with its own in the order in which blocks leave. Guarded by the
// store's mutex.
type estate struct {
	left      []bequest // by age, the oldest first
	taken     map[tiers.Part]bool
	beside    int64 // bytes of live runs of other jobs
	runs      int   // of those
	settling  bool  // something is being inherited
	inherited uint64
}

// bequest is a part that nobody owns any more.
type bequest struct {
	part  tiers.Part
	bytes int64
}

// EstateStats is what runs of other numbers and jobs take of the budget for the
// cold tier.
type EstateStats struct {
	Parts     int    `json:"parts"` // of ended runs, that may be inherited
	Bytes     int64  `json:"bytes"` // of those
	Runs      int    `json:"runs"`  // of other jobs, that live
	RunBytes  int64  `json:"run_bytes"`
	Inherited uint64 `json:"inherited_total"` // parts
	Budget    int64  `json:"budget"`          // that is left for this rank's own files; 0: none
}

// untaken leaves out the parts that were inherited: they are this rank's own.
func (s *Store) untaken(parts []tiers.Part) []tiers.Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(parts), func(p tiers.Part) bool { return s.mu.estate.taken[p] })
}

// settleEstate notes what a round found.
func (s *Store) settleEstate(parts []tiers.Part, left []tiers.Left) {
	if len(parts) != len(left) {
		return
	}
	var beside int64
	runs := 0
	if s.cold != nil {
		beside, runs = s.cold.OthersUsage()
	}
	var all []bequest
	for i, l := range left {
		if l.Ended {
			all = append(all, bequest{parts[i], l.Bytes})
		} else {
			beside += l.Bytes
			runs++
		}
	}
	slices.SortFunc(all, func(a, b bequest) int { return cmp.Compare(a.part.Incarnation, b.part.Incarnation) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.estate.left, s.mu.estate.beside, s.mu.estate.runs = all, beside, runs
	s.wakeCleanerLocked(false)
}

// shareLocked is what the policy gets of the estate. In a shortage what this
// rank may take, and what is left, is all there is.
func (s *Store) shareLocked() policy.Estate {
	e := policy.Estate{
		Budget: s.limits.Load().ColdBytes, Beside: s.mu.estate.beside, Runs: s.mu.estate.runs, Young: s.mu.room.bytes - s.mu.room.old, Fill: coldFill,
	}
	short := s.mu.short.Limit()
	for _, b := range s.mu.estate.left {
		e.Left = append(e.Left, b.bytes)
		short += b.bytes
	}
	if s.mu.short.Limit() > 0 && (e.Budget == 0 || short < e.Room()) {
		e.Budget, e.Beside, e.Runs = short, 0, 0
	}
	return e
}

// coldBudgetLocked is how many bytes the cold tier may take for this rank's own
// at the moment; 0 is no limit.
func (s *Store) coldBudgetLocked() int64 {
	e := s.shareLocked()
	if e.Budget == 0 {
		return 0
	}
	return max(1, e.Own())
}

// inheritDeadline bounds the taking over of what is due.
const inheritDeadline = 2 * time.Minute

// inheritDue inherits what the budget asks for. A part that does not come is left
// alone, and not counted, until the next round finds it again. Nothing leaves the
// cold tier meanwhile, for what follows on what is not clear yet.
func (s *Store) inheritDue(ctx context.Context) {
	due := s.due()
	if len(due) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, inheritDeadline)
	defer cancel()
	for _, b := range due {
		done, inherited, err := s.inherit(within, b.part)
		if inherited {
			s.log.Info("inherited for its space", "of", b.part.Rank, "incarnation", b.part.Incarnation, "file_bytes", b.bytes,
				"blocks", done.Blocks, "names", done.Names)
		}
		s.mu.Lock()
		if err != nil && ctx.Err() == nil {
			s.noteColdLocked(err)
		}
		s.mu.estate.left = slices.DeleteFunc(s.mu.estate.left, func(l bequest) bool { return l.part == b.part })
		if inherited {
			s.mu.short.Grow(b.bytes)
		}
		s.mu.Unlock()
	}
	s.keepHeads(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.estate.settling = false
	s.wakeCleanerLocked(false)
}

// keepHeads counts as used the chains that an earlier run left and names that the
// catalogue has, of other parts, go on with: their ends here would leave, and leave
// holes. With fresh only names that are new to the catalogue are looked at.
// A catalogue that breaks meanwhile has no chains.
func (s *Store) keepHeads(fresh bool) {
	s.mu.Lock()
	none := s.mu.room.old == 0
	s.mu.Unlock()
	if none {
		return
	}
	_ = s.eachCatalogued(fresh, nil, func(st directory.Statement) {
		s.mu.Lock()
		defer s.mu.Unlock()
		var chain []policy.Ref
		for n := s.mu.names.Get(st.Name.Namespace, st.Name.Parent); n != nil && n.Block() != nil && stateOf(n).below.old; n = n.Parent() {
			s.usedColdLocked(stateOf(n))
			chain = append(chain, policy.Ref{Fingerprint: s.fingerprintLocked(stateOf(n)), Size: stateOf(n).Info.Size, Node: stateOf(n).below.node})
		}
		if len(chain) > 0 {
			slices.Reverse(chain) // head first
			s.mu.access.pass(s.mu.room.policy, s.age(), chain, false)
		}
	})
}

// due is what is to be inherited now, nothing while something is. If there is
// anything the estate is settling from then on.
func (s *Store) due() []bequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.room.policy == nil || s.mu.closed || s.mu.estate.settling {
		return nil
	}
	due := slices.Clone(s.mu.estate.left[:s.shareLocked().Take()])
	s.mu.estate.settling = len(due) > 0
	return due
}

// inherit makes a part this rank's own and takes in what it holds. It is false
// while somebody owns it.
func (s *Store) inherit(ctx context.Context, p tiers.Part) (RecoverStats, bool, error) {
	a := adoption{store: s}
	inherited, err := s.cold.AdoptOrphan(ctx, p, a.gather)
	if err == nil && inherited {
		s.mu.Lock()
		if s.mu.estate.taken == nil {
			s.mu.estate.taken = map[tiers.Part]bool{}
		}
		if !s.mu.estate.taken[p] {
			s.mu.estate.taken[p] = true
			s.mu.estate.inherited++
		}
		s.mu.Unlock()
		err = a.run()
	}
	if err != nil {
		return a.done, false, fmt.Errorf("cascade: inherit the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	return a.done, inherited, nil
}

// estateStatsLocked is the estate at one moment; nil where it never mattered.
func (s *Store) estateStatsLocked() *EstateStats {
	budget := s.coldBudgetLocked()
	if budget == 0 && s.mu.estate.inherited == 0 {
		return nil
	}
	st := &EstateStats{
		Parts: len(s.mu.estate.left), Runs: s.mu.estate.runs, RunBytes: s.mu.estate.beside, Inherited: s.mu.estate.inherited, Budget: budget,
	}
	for _, b := range s.mu.estate.left {
		st.Bytes += b.bytes
	}
	return st
}
