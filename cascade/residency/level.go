package residency

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
	"cascadekv/tiers"
)

// maxMemory bounds the memory tiers of a store: HBM or its stand-in, shm, and one that is deep.
const maxMemory = names.Levels

// maxLevels bounds the ladder: memory, and one level in files.
const maxLevels = maxMemory + 1

// Level is one tier of the ladder, in memory or in files, with its policy. Guarded by
// State.Mu, but for the tier.
//
// The files level ranks the blocks that this rank keeps there if it has a budget, or
// was full once. Blocks that lie in other ranks' files are not among them: those
// ranks decide.
//
// A block is held there while it is also in memory down to Ladder.Host, so that this never
// loses the copy below it; while a name below one of its own has a block, wherever
// that is, so that no chain gets a hole; while it is leased; and while it is
// read.
type Level struct {
	state  *State
	Order               // without a policy everything stays: of files without a budget, before they are full
	Index  int          // in the ladder
	Memory tiers.Memory // nil: files
	Files  tiers.Files  // nil: memory
	Stats  TierStats
	Speed  *estimate.Speed // of loads from it
	junk   []block.ID      // dropped while they were pinned

	Reads, Writes Flow // the budgets of what requests and upkeep move, of files, and of what goes to Ladder.Deep

	// Of Ladder.Deep:
	NoReads, NoWrites Pause
	TooLarge          int64 // the least block that was refused as too large; 0: none was

	// Of files:
	Bytes   int64 // of the blocks that the policy ranks
	Old     int64 // of these, bytes of blocks that earlier runs left and this one did not use
	Ranking bool  // the policy is new, and has not been given all blocks yet

	Loads   int     // of files that are under way: nothing leaves meanwhile, nor is a name taken for what the catalogue alone knows
	Damaged Damaged // of other ranks' files

	wanted map[block.ID]struct{} // see WantedLocked
	spills atomic.Bool           // see Spilled
	recent policy.Recency        // of blocks that nothing is known of but that they left memory
}

// Order is in which order a tier gives its blocks up.
type Order struct {
	Policy policy.Policy
	Nodes  []*Block // by policy node
	cursor int      // node that Find looks at next
}

// insert adds b, which entered the tier.
func (o *Order) insert(now time.Duration, m policy.Meta, b *Block) policy.Node {
	node := o.Policy.Insert(now, m)
	for int(node) >= len(o.Nodes) {
		o.Nodes = append(o.Nodes, nil)
	}
	o.Nodes[node] = b
	return node
}

// remove takes out a block that left the tier, evicted or for another reason.
func (o *Order) remove(node policy.Node, evicted bool) {
	o.Policy.Remove(node, evicted)
	o.Nodes[node] = nil
}

// Next is the block that the policy gives up next, nil when all are held.
func (o *Order) Next() *Block {
	if node, ok := o.Policy.Victim(); ok {
		return o.Nodes[node]
	}
	return nil
}

// findStep bounds the blocks that find looks at.
const findStep = 32 << 10

// Find returns a block that ok accepts, of the next findStep in turn; nil when
// there is none. The search goes on where it ended: however many blocks there are
// and however many callers ask again and again, each holds the mutex for a bounded
// time.
func (o *Order) Find(ok func(*Block) bool) *Block {
	for range min(findStep, len(o.Nodes)) {
		if o.cursor >= len(o.Nodes) {
			o.cursor = 0
		}
		b := o.Nodes[o.cursor]
		o.cursor++
		if b != nil && ok(b) {
			return b
		}
	}
	return nil
}

// nodeOf is the node of b in a level's policy, policy.NoNode if it has none.
func (m *Level) nodeOf(b *Block) policy.Node {
	switch {
	case m.Files != nil && b.Below.Ranked:
		return b.Below.Node
	case m.Files == nil && b.In(m.Index):
		return b.At[m.Index].Node
	}
	return policy.NoNode
}

// AdmitsLocked reports whether the policy lets a block that has come up from below
// enter a level.
func (m *Level) AdmitsLocked(b *Block) bool {
	meta := m.state.MetaLocked(b)
	meta.Elsewhere = true
	return m.Policy.Admit(m.state.Clock(), meta)
}

// The invariant of residence: in each memory tier, the holds on a block are its
// busy holds (views and copies) plus those of the chain graph: see names.Graph.

// EnterLocked records that b's bytes are in memory tier m.
func (s *State) EnterLocked(b *Block, m *Level) {
	s.Mu.AssertHeld()
	b.At[m.Index].Node = m.insert(s.Clock(), s.MetaLocked(b), b)
	s.Mu.Names.Enter(&b.Block, m.Index)
	s.ApplyLocked()
	s.Leases.HoldLocked(b)
}

// LeaveLocked undoes EnterLocked. Holds of whatever kind on b in m end with it.
func (s *State) LeaveLocked(b *Block, m *Level, evicted bool) {
	s.Mu.AssertHeld()
	node := b.At[m.Index].Node
	s.Mu.Names.Leave(&b.Block, m.Index)
	s.ApplyLocked()
	b.At[m.Index].stay++
	m.remove(node, evicted)
}

// HoldLocked keeps b from being chosen as a victim of tier t.
func (s *State) HoldLocked(b *Block, t int) { s.Mem[t].Policy.Hold(b.At[t].Node) }

// ReleaseLocked undoes one HoldLocked.
func (s *State) ReleaseLocked(b *Block, t int) { s.Mem[t].Policy.Release(b.At[t].Node) }

// MetaLocked describes b to policies.
func (s *State) MetaLocked(b *Block) policy.Meta {
	s.Mu.AssertHeld()
	return policy.Meta{
		Fingerprint: s.Requests.FingerprintLocked(b),
		Size:        b.Info.Size,
		Refs:        len(b.Names()),
		Prefix:      b.Prefix(),
		Depth:       b.Depth(),
	}
}

// Age is a time by State.Now, since the state was made: real time, where Clock is that of the policies.
func (s *State) Age(now time.Time) time.Duration { return now.Sub(s.born) }

// DropLocked takes b's bytes out of memory tier m, evicted or for another reason.
// Bytes that somebody still has pinned, such as a rank that reads them, are renamed
// out of the way, and go when the pins are gone.
func (s *State) DropLocked(b *Block, m *Level, evicted bool) {
	s.LeaveLocked(b, m, evicted)
	err := m.Memory.Evict(b.Info.ID)
	if errors.Is(err, tiers.ErrPinned) {
		junk := s.ProvisionalLocked()
		if err = m.Memory.Rename(b.Info.ID, junk); err == nil {
			m.junk = append(m.junk, junk)
		}
	}
	s.NoteLocked(m, err)
}

// ForgetLocked removes a block that has no names from everywhere, or leaves it to the last of those who are
// busy with it, unless it has no bytes: a put of the same content must not find it.
func (s *State) ForgetLocked(b *Block) {
	s.Mu.AssertHeld()
	if len(b.Names()) > 0 || b.Busy > 0 && (b.InAny() || b.Cold) {
		return
	}
	for t, m := range s.Mem {
		if b.In(t) {
			s.DropLocked(b, m, false)
		}
	}
	if b.Cold {
		s.Cold.LeaveLocked(b, false)
		s.NoteColdLocked(s.Cold.Files.Evict(b.Info.ID))
	}
	s.removeLocked(b)
}

// removeLocked takes b out of the index of blocks.
func (s *State) removeLocked(b *Block) {
	if s.Mu.Blocks[b.Info.ID] == b {
		delete(s.Mu.Blocks, b.Info.ID)
		s.Count.Stats.BytesStored -= b.Info.Size
		if b.Stated != Unstated {
			s.Watch.EnqueuePublishAllLocked(b)
		}
	}
}

// corruptLocked withdraws b from memory tier m because its bytes fail their
// checksum.
func (s *State) corruptLocked(b *Block, m *Level) {
	if !b.In(m.Index) {
		return
	}
	s.Count.Stats.Corrupt++
	GoneLocked(s, b, m, losslog.Damaged)
}

// GoneLocked withdraws b from memory tier m, which has lost its bytes for that reason.
func GoneLocked(s *State, b *Block, m *Level, why losslog.Reason) {
	if !b.In(m.Index) {
		return
	}
	s.DropLocked(b, m, false)
	if !b.Cold && !b.InAny() {
		s.Count.LostLocked(why, m, b.Names()...)
		s.VanishLocked(b)
	}
}

// SweepJunkLocked drops bytes whose pins are gone.
func (s *State) SweepJunkLocked() {
	for _, m := range s.Mem {
		kept := m.junk[:0]
		for _, id := range m.junk {
			if errors.Is(m.Memory.Evict(id), tiers.ErrPinned) {
				kept = append(kept, id)
			}
		}
		m.junk = kept
	}
}

// NoteLocked counts a tier's failure other than a miss or a lack of room.
func (s *State) NoteLocked(m *Level, err error) {
	s.Mu.AssertHeld()
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrFull) && !errors.Is(err, tiers.ErrShort) {
		m.Stats.Errors++
		s.LogLocked(slog.LevelWarn, "memory tier", "tier", m.Stats.Name, "err", err)
	}
}

// NoteColdLocked is NoteLocked for the cold tier. What its caller has ended is no
// failure.
func (s *State) NoteColdLocked(err error) {
	s.Mu.AssertHeld()
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrExists) && !errors.Is(err, context.Canceled) {
		s.Cold.Stats.Errors++
		s.LogLocked(slog.LevelWarn, "cold tier", "tier", s.ColdName(), "err", err)
	}
	if errors.Is(err, tiers.ErrFull) {
		s.Watch.NoteFullLocked()
	}
}
