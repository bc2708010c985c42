package residency

import (
	"cascadekv/cascade/policy"
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
	b.Cold = true
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
	b.Below = coldState{Ranked: true, Old: old, Node: m.insert(m.state.Age(m.state.Now()), meta, b), Bytes: m.StoredSize(b)}
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

// StoredSize returns the bytes that a block takes in the cold tier: fewer than
// it has where the tier encodes it.
func (m *Level) StoredSize(b *Block) int64 {
	return m.Files.StoredSize(b.Info)
}

// SyncHoldLocked keeps the hold on b in the cold tier in step with the
// reasons for one. It is called after every change of one of them.
func (m *Level) SyncHoldLocked(b *Block) {
	if b == nil || !b.Below.Ranked { // there may be no such level
		return
	}
	m.state.Mu.AssertHeld()
	held := b.InAny() || b.Loading || b.Needed()
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
		if b != nil && len(b.Names()) > 1 && !b.InAny() && !b.Loading && !b.Leased() {
			return b
		}
	}
	return nil
}
