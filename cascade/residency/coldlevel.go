package residency

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// coldState is a block's place in the cold tier.
type coldState struct {
	OtherOwner bool // in another rank's file
	Ranked     bool
	Held       bool
	Old        bool // left by an earlier run, and not used since
	Node       policy.Node
	Bytes      int64 // that it takes there
}

// StoredLocked records that b is in the cold tier, in a file of this rank.
func (m *Level) StoredLocked(b *Block) { m.enterLocked(b, false) }

// AdoptLocked is StoredLocked for what an earlier run left: it leaves first.
func (m *Level) AdoptLocked(b *Block) { m.enterLocked(b, true) }

func (m *Level) enterLocked(b *Block, old bool) {
	b.Cold, b.From, b.Recorded = true, nil, true
	m.RankLocked(b, old)
	m.state.PlacementChangedLocked(b)
}

// RankLocked adds b, which is in the cold tier, to that tier's policy, if it has
// one; old: an earlier run left it.
func (m *Level) RankLocked(b *Block, old bool) {
	m.state.Mu.AssertHeld()
	if m.Policy == nil || b.Below.Ranked {
		return
	}
	meta := m.state.MetaLocked(b)
	meta.Old = old
	b.Below = coldState{Ranked: true, Old: old, Node: m.insert(m.state.Clock(), meta, b), Bytes: m.Files.StoredSize(b.Info)}
	m.Bytes += b.Below.Bytes
	if old {
		m.Old += b.Below.Bytes
	}
}

// UsedLocked records that b is used, if an earlier run left it.
func (m *Level) UsedLocked(b *Block) {
	if b.Below.Old { // else there may be no such level
		m.state.Mu.AssertHeld()
		b.Below.Old = false
		m.Old -= b.Below.Bytes
	}
}

// LastUse is when a block that was used was left to the catalogue, as far as that is remembered
// of blocks of which that alone knows: see policy.Recency.
func (m *Level) LastUse(id BlockID) uint8 { return m.recent.Last(recentOf(id)) }

// recentOf is the hash of a block for policy.Recency.
func recentOf(id BlockID) uint64 { return binary.LittleEndian.Uint64(id[:]) }

// KeepLocked records that b, which was adopted, was used before that: it leaves after all
// that an earlier run left. It returns false if that is so already.
func (m *Level) KeepLocked(b *Block) bool {
	if !b.Below.Old {
		return false
	}
	m.UsedLocked(b)
	ref := policy.Ref{Fingerprint: m.state.Requests.FingerprintLocked(b), Size: b.Info.Size, Node: b.Below.Node}
	m.state.Requests.Pass(m.Policy, []policy.Ref{ref}, false)
	return true
}

// LeaveLocked undoes StoredLocked and AdoptLocked.
func (m *Level) LeaveLocked(b *Block, evicted bool) {
	m.state.Mu.AssertHeld()
	b.Cold = false
	if b.Below.Ranked {
		m.remove(b.Below.Node, evicted)
		m.Bytes -= b.Below.Bytes
		if b.Below.Old {
			m.Old -= b.Below.Bytes
		}
	}
	b.Below = coldState{}
	m.state.PlacementChangedLocked(b)
}

// linkFromLocked records a name of b, a copy of what the catalogue has, where that lies. In another owner's segment that is
// not done: then b is dirty, as any block that is in memory only. What was put elsewhere is recorded there.
func (m *Level) linkFromLocked(b *Block, n *names.Name) {
	if n.Copied() {
		return
	}
	err := m.LinkAtLocked(tiers.Segment(*b.From), b.Info.ID, n.Record())
	if err == nil {
		b.Recorded = true
		m.state.NoteLinkLocked(nil)
		b.LinkSeq = m.state.Mu.Writes.LinkSeq
		m.state.Watch.RestsLocked(b.Info)
		return
	}
	if !errors.Is(err, tiers.ErrNotFound) {
		m.state.NoteColdLocked(err)
	}
	b.From = nil
	m.state.PlacementChangedLocked(b)
}

// LinkAtLocked is Files.LinkAt.
func (m *Level) LinkAtLocked(at tiers.Segment, id block.ID, n block.Name) error {
	m.state.Mu.AssertHeld()
	delete(m.wanted, id) // this name stands for it
	return m.Files.LinkAt(at, id, n)
}

// WantedLocked records that this rank's files have a block that the state does not know, for
// which names may stand that are recorded elsewhere.
func (m *Level) WantedLocked(id block.ID) {
	m.state.Mu.AssertHeld()
	if m.wanted == nil {
		m.wanted = map[block.ID]struct{}{}
	}
	m.wanted[id] = struct{}{}
}

// Wanted returns the blocks of WantedLocked, but for those of which it is known by now whose they are.
func (m *Level) Wanted() []block.ID {
	m.state.Mu.Lock()
	defer m.state.Mu.Unlock()
	return slices.Collect(maps.Keys(m.wanted))
}

// JudgedLocked evicts a block that is nobody's, unless it is in memory, or was
// given a name, since it was asked for. One that is somebody's, or a copy in memory of what lies there, may be nobody's later.
func (m *Level) JudgedLocked(id block.ID, nobodys bool) {
	m.state.Mu.AssertHeld()
	b := m.state.Mu.Blocks[id]
	if _, wanted := m.wanted[id]; !wanted || b == nil && !nobodys || b != nil && !b.Cold {
		return
	}
	var err error
	if b == nil { // else the state has it in its files
		err = m.Files.Evict(id)
	}
	if errors.Is(err, tiers.ErrPinned) {
		return
	}
	delete(m.wanted, id)
	m.state.NoteColdLocked(err)
}

// RestLocked records that b, which is in memory only, lies at a place in this rank's own files too, of which the catalogue
// alone knows: it needs no second copy there. It is not being written.
func (m *Level) RestLocked(b *Block, at *directory.Segment) {
	m.state.Mu.AssertHeld()
	if b.HasLowerCopy() || !b.InAny() {
		return
	}
	b.From = at
	for _, n := range b.Names() {
		if b.From != nil {
			m.linkFromLocked(b, n)
		}
	}
	m.state.PlacementChangedLocked(b)
}

// LoseLocked undoes what made b, which is in memory, a copy of what lies elsewhere: that
// is not there any more. b is dirty then, with all its names.
func (m *Level) LoseLocked(b *Block) {
	m.state.Mu.AssertHeld()
	b.From = nil
	for _, n := range b.Names() {
		m.state.Mu.Names.Reclaim(n)
	}
	m.state.ApplyLocked()
	m.state.PlacementChangedLocked(b)
}

// Own returns where blocks lie in this rank's own files that are spilled, in parallel to ids, as far as the catalogue knows:
// nil for one that does not. It may read from a local disk. There may be no such level.
func (m *Level) Own(ids ...BlockID) []*directory.Segment {
	places := make([]*directory.Segment, len(ids))
	if !m.Spilled() {
		return places
	}
	for i, f := range m.Files.Catalogue().Own(ids) {
		if f.Info.ID.IsZero() {
			continue
		}
		if _, err := m.Files.Segment(ids[i]); err != nil { // else the state knows it, or leaves it aside
			at := directory.Segment(f.Segment)
			places[i] = &at
		}
	}
	return places
}

// Spilled reports whether the catalogue has blocks of this rank of which the store
// knows nothing. There may be no such level.
func (m *Level) Spilled() bool { return m != nil && m.spills.Load() }

// SpillLocked has Spilled be true from then on.
func (m *Level) SpillLocked() {
	if !m.spills.Swap(true) {
		m.state.Watch.CataloguedLocked()
	}
}

// CataloguedLocked reports whether names of b are listed by a scan of the catalogue. There
// may be no such level.
func (m *Level) CataloguedLocked(b *Block) bool {
	return m.Spilled() && b.Cold && !b.Below.OtherOwner && b.LinkSeq <= m.state.Mu.Writes.SyncedSeq
}

// LetGoLocked leaves what is known of b, which lies in one of this rank's own files, to
// the catalogue, and reports whether it did: not while somebody uses b there, or has
// changed a name of it that is not durable yet. What is in memory is then a copy of
// what the catalogue has.
func (m *Level) LetGoLocked(b *Block) bool {
	m.state.Mu.AssertHeld()
	if !m.MayLetGoLocked(b) {
		return false
	}
	at, err := m.Files.Segment(b.Info.ID)
	if err != nil {
		return false
	}
	from := directory.Segment(at)
	b.From = &from
	if b.Cold {
		m.LeaveLocked(b, false)
	}
	if !b.InAny() {
		m.state.VanishLocked(b)
	}
	return true
}

// MayLetGoLocked reports whether LetGoLocked would. What is known for the budget's sake,
// to leave before all else, stays known.
func (m *Level) MayLetGoLocked(b *Block) bool {
	used := b.Writing || b.Loading || b.Below.OtherOwner || b.Below.Old || !b.InAny() && (b.Busy > 0 || b.Leased())
	return b.Cold && !used && b.LinkSeq <= m.state.Mu.Writes.SyncedSeq
}

// SyncHoldLocked keeps the hold on b in the cold tier in step with the
// reasons for one. It is called after every change of one of them.
func (m *Level) SyncHoldLocked(b *Block) {
	if b == nil || !b.Below.Ranked { // there may be no such level
		return
	}
	m.state.Mu.AssertHeld()
	held := m.state.InNear(b) || b.Loading || b.Needed()
	if held == b.Below.Held {
		return
	}
	b.Below.Held = held
	if held {
		m.Policy.Hold(b.Below.Node)
	} else {
		m.Policy.Release(b.Below.Node)
	}
}

// VictimLocked returns the block that the cold tier gives up next, nil for
// none. Where blocks with equal bytes at several places of their chains hold
// each other in a ring, one of them is taken: see eviction.Evictor.breakRingLocked.
func (m *Level) VictimLocked() *Block {
	m.state.Mu.AssertHeld()
	if b := m.Next(); b != nil {
		return b
	}
	for _, b := range m.Nodes {
		if b != nil && len(b.Names()) > 1 && !m.state.InNear(b) && !b.Loading && !b.Leased() {
			return b
		}
	}
	return nil
}
