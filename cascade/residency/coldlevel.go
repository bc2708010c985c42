package residency

import (
	"cascadekv/cascade/policy"
)

// ColdLevel ranks the blocks that this rank keeps in a cold tier with a budget, or
// in one that was full once. Blocks that lie in other ranks' files are not among
// them: those ranks decide.
//
// A block is held there while it is also in memory, so that memory never loses
// the copy below it; while a name below one of its own has a block, wherever
// that is, so that no chain gets a hole; while it is leased; and while it is
// read.
type ColdLevel struct {
	state *State
	Order // its policy is nil without a budget, before low-space mode: everything stays
	Bytes int64
	Old   int64 // of these, bytes of blocks that earlier runs left and this one did not use

	Ranking bool // the policy is new, and has not been given all blocks yet
}

// coldState is a block's place in the cold tier.
type coldState struct {
	OtherOwner bool // in another rank's file
	Ranked     bool
	Held       bool
	Old        bool // left by an earlier run, and not used since
	Node       policy.Node
	Bytes      int64 // that it takes there
}

// EnterLocked records that b is in the cold tier, in a file of this rank.
func (cl *ColdLevel) EnterLocked(b *Block) { cl.enterLocked(b, false) }

// AdoptLocked is EnterLocked for what an earlier run left: it leaves first.
func (cl *ColdLevel) AdoptLocked(b *Block) { cl.enterLocked(b, true) }

func (cl *ColdLevel) enterLocked(b *Block, old bool) {
	b.Cold = true
	cl.RankLocked(b, old)
	cl.state.PlacementChangedLocked(b)
}

// RankLocked adds b, which is in the cold tier, to that tier's policy, if it has
// one; old: an earlier run left it.
func (cl *ColdLevel) RankLocked(b *Block, old bool) {
	cl.state.Mu.AssertHeld()
	if r := cl; r.Policy != nil && !b.Below.Ranked {
		meta := cl.state.MetaLocked(b)
		meta.Old = old
		b.Below = coldState{Ranked: true, Old: old, Node: r.insert(cl.state.Age(), meta, b), Bytes: cl.StoredSize(b)}
		r.Bytes += b.Below.Bytes
		if old {
			r.Old += b.Below.Bytes
		}
	}
}

// UsedLocked records that b is used, if an earlier run left it.
func (cl *ColdLevel) UsedLocked(b *Block) {
	cl.state.Mu.AssertHeld()
	if b.Below.Old {
		b.Below.Old = false
		cl.Old -= b.Below.Bytes
	}
}

// LeaveLocked undoes EnterLocked.
func (cl *ColdLevel) LeaveLocked(b *Block, evicted bool) {
	cl.state.Mu.AssertHeld()
	b.Cold = false
	if b.Below.Ranked {
		cl.remove(b.Below.Node, evicted)
		cl.Bytes -= b.Below.Bytes
		if b.Below.Old {
			cl.Old -= b.Below.Bytes
		}
	}
	b.Below = coldState{}
	cl.state.PlacementChangedLocked(b)
}

// StoredSize returns the bytes that a block takes in the cold tier: fewer than
// it has where the tier encodes it.
func (cl *ColdLevel) StoredSize(b *Block) int64 {
	return cl.state.Cold.StoredSize(b.Info)
}

// SyncHoldLocked keeps the hold on b in the cold tier in step with the
// reasons for one. It is called after every change of one of them.
func (cl *ColdLevel) SyncHoldLocked(b *Block) {
	cl.state.Mu.AssertHeld()
	if b == nil || !b.Below.Ranked {
		return
	}
	held := b.InAny() || b.Loading || b.Needed()
	if held == b.Below.Held {
		return
	}
	b.Below.Held = held
	if held {
		cl.Policy.Hold(b.Below.Node)
	} else {
		cl.Policy.Release(b.Below.Node)
	}
}

// VictimLocked returns the block that the cold tier gives up next, nil for
// none. Where blocks with equal bytes at several places of their chains hold
// each other in a ring, one of them is taken: see eviction.Evictor.breakRingLocked.
func (cl *ColdLevel) VictimLocked() *Block {
	cl.state.Mu.AssertHeld()
	if b := cl.Next(); b != nil {
		return b
	}
	for _, b := range cl.Nodes {
		if b != nil && len(b.Names()) > 1 && !b.InAny() && !b.Loading && !b.Leased() {
			return b
		}
	}
	return nil
}
