package recovery

import (
	"cmp"
	"fmt"
	"slices"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Recoverer rebuilds the state of a rank from what its tiers hold.
type Recoverer struct {
	state *residency.State
}

// New returns the recoverer of a rank that holds nothing yet.
func New(s *residency.State) *Recoverer { return &Recoverer{s} }

// recovery gathers what the tiers found. Several tiers, and several records of
// one tier, may speak of the same name: the highest Seq is the truth.
type recovery struct {
	names  map[residency.NameID]claim
	stale  []claim // records that lost and are to be withdrawn
	wanted map[*residency.Block]bool
	unused []block.ID // in the deep level: see recoverEntryLocked
}

type claim struct {
	name    block.Name
	block   *residency.Block
	dropped bool
	below   bool // the cold tier has the record
}

// Recover rebuilds the index from the tiers. takeClaimsLocked is called when all names are there, and
// blocks without a name still are.
func (rc *Recoverer) Recover(takeClaimsLocked func()) error {
	r := recovery{names: map[residency.NameID]claim{}, wanted: map[*residency.Block]bool{}}
	found := func(m *residency.Level) func(tiers.Entry) error {
		return func(e tiers.Entry) error {
			rc.state.Mu.Lock()
			defer rc.state.Mu.Unlock()
			rc.recoverEntryLocked(&r, e, m)
			return nil
		}
	}
	if rc.state.Cold != nil {
		if err := rc.state.Cold.Files.Recover(found(nil)); err != nil {
			return fmt.Errorf("cascade: recover %s: %w", rc.state.ColdName(), err)
		}
	}
	for _, m := range rc.state.Mem {
		if err := m.Memory.Recover(found(m)); err != nil {
			return fmt.Errorf("cascade: recover %s: %w", m.Stats.Name, err)
		}
	}
	for _, id := range r.unused {
		if err := rc.state.Deep().Memory.Evict(id); err != nil {
			rc.state.Log.Warn("a block that an earlier run left is not used, and stays where it is", "tier", rc.state.Deep().Stats.Name, "block", id, "err", err)
		}
	}
	resting := rc.restOnOwn(&r)
	away := rc.parentsAway(&r)
	rc.state.Mu.Lock()
	defer rc.state.Mu.Unlock()
	rc.recoverNamesLocked(&r)
	for id, expires := range away {
		rc.state.Mu.Names.SetAway(id.NS, id.Key, expires)
	}
	for b, at := range resting {
		rc.state.Cold.RestLocked(b, at)
	}
	takeClaimsLocked()
	rc.recoverBlocksLocked(&r)
	for _, ns := range rc.state.Mu.Names.Spaces() {
		sp := rc.state.Mu.Names.Space(ns)
		sp.Recovered = len(sp.List())
	}
	rc.state.Count.Stats.Recovered = residency.RecoverStats{Blocks: len(rc.state.Mu.Blocks), Names: rc.state.Mu.Names.Len(), Bytes: rc.state.Count.Stats.BytesStored}
	return nil
}

// recoverEntryLocked takes in one entry; m is nil for the cold tier. What was on its way out of the deep level has no
// id, and is not used there: to hash it would take reads. Nor is what disagrees with another tier.
func (rc *Recoverer) recoverEntryLocked(r *recovery, e tiers.Entry, m *residency.Level) {
	for _, n := range e.Dropped {
		rc.claimNameLocked(r, claim{name: n, dropped: true})
	}
	if e.Info.ID.IsZero() {
		return
	}
	deep := m != nil && m == rc.state.Deep()
	if deep && e.Info.ID.IsProvisional() {
		r.unused = append(r.unused, e.Info.ID)
		return
	}
	b := rc.state.FoundLocked(e.Info)
	switch {
	case b == nil:
		if deep {
			r.unused = append(r.unused, e.Info.ID)
		}
		return
	case m == nil:
		b.Cold, b.Below.OtherOwner = true, e.OtherOwner
		if e.Wanted {
			r.wanted[b] = true
		}
	case !b.In(m.Index):
		if len(e.Names) > 0 {
			b.Fingerprint = block.Fingerprint(e.Names[0].Namespace, e.Names[0].Key)
		}
		rc.state.EnterLocked(b, m)
	}
	for _, n := range e.Names {
		rc.claimNameLocked(r, claim{name: n, block: b, below: m == nil})
	}
	rc.state.Mu.NextProv = max(rc.state.Mu.NextProv, block.ProvisionalNumber(e.Info.ID))
}

func (rc *Recoverer) claimNameLocked(r *recovery, c claim) {
	rc.state.Mu.Names.Observe(c.name.Seq)
	k := residency.NameID{NS: c.name.Namespace, Key: c.name.Key}
	old, known := r.names[k]
	if known && old.name.Seq >= c.name.Seq {
		old, c = c, old
	}
	r.names[k] = c
	if known && old.block != nil && old.block != c.block {
		r.stale = append(r.stale, old)
	}
}

// recoverNamesLocked attaches the names that won, parents before children where
// the order of their writing has that.
func (rc *Recoverer) recoverNamesLocked(r *recovery) {
	for _, c := range r.stale {
		rc.state.UnlinkLocked(c.block, c.name) // as of that record: it may be a copy, a tick older than a put that stays
	}
	live := make([]claim, 0, len(r.names))
	for _, c := range r.names {
		if !c.dropped {
			live = append(live, c)
		}
	}
	slices.SortFunc(live, func(x, y claim) int { return cmp.Compare(x.name.Seq, y.name.Seq) })
	for _, c := range rc.trimLocked(live) {
		if b := c.block; b.Cold && !b.Below.OtherOwner && len(b.Names()) == 0 {
			rc.state.Cold.AdoptLocked(b) // with its first name
		}
		rc.state.BindRecordedLocked(c.name, c.block)
		if c.block.Cold && !c.below {
			rc.state.LinkColdLocked(c.block, c.name)
		}
	}
}

// recoverBlocksLocked drops blocks that nobody names and queues those without
// an id. In the cold tier those stay for which names may stand that are recorded elsewhere.
func (rc *Recoverer) recoverBlocksLocked(r *recovery) {
	for _, b := range rc.state.Mu.Blocks {
		if len(b.Names()) == 0 {
			if b.Cold && r.wanted[b] {
				rc.state.Cold.LeaveLocked(b, false)
				rc.state.Cold.WantedLocked(b.Info.ID)
			}
			rc.state.ForgetLocked(b)
		} else if b.Info.ID.IsProvisional() {
			rc.state.Pending.Push(b)
		}
	}
}
