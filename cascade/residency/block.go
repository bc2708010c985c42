package residency

import (
	"log/slog"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// Block is one stored block: its facts and names, and where it is.
type Block struct {
	names.Block
	At    [maxMemory]place
	Below coldState // of this rank's blocks in the cold tier

	// From is the segment, of which the catalogue knows, that this clean copy is one of, or nil: another
	// owner's, or a spilled one. Such a copy is not dirty, and is dropped when it is evicted.
	From *directory.Segment

	LinkSeq uint64 // State.Mu.LinkSeq when the cold tier was last given a name of it

	Busy int // views and copies in flight: reasons not to forget it

	Cold, Writing, Loading bool // in the cold tier, on its way there, and from there
	Recorded               bool // this rank's own files have, or may have, records of its names

	Used bool // since it was put, adopted or loaded again: got, or brought up from below

	Generated bool // every put of it in this run said so: see Limits.StorePromptOnly

	Asked uint8 // requests that it was part of in this run, its put among them; 255: at least

	CountedDirty, CountedPending bool // in Stats: see accountLocked

	Stated Stated // to the homes of its id

	Fingerprint uint64 // see FingerprintLocked; 0 before the first name
}

// Stated is what this rank stated last of a block's bytes to the homes of its id.
type Stated uint8

const (
	Unstated    Stated = iota // nothing
	StatedClaim               // it is about to write them
	StatedKept                // it keeps them in segments
)

// place is a block's residence in one memory tier, if it is there. stay differs
// for each of its residences there: a view counts on that for as long as it lasts.
type place struct {
	Node policy.Node
	stay uint32
}

// NewBlock returns a block without names that is nowhere yet.
func NewBlock(info block.Info) *Block {
	b := &Block{Block: names.Block{Info: info}}
	b.Owner = b
	return b
}

// BlockOf returns the block that n stands for, nil of a placeholder.
func BlockOf(n *names.Name) *Block { return ownBlock(n.Block()) }

func ownBlock(b *names.Block) *Block {
	if b == nil {
		return nil
	}
	return b.Owner.(*Block)
}

// Dirty reports whether b is in memory only.
func (b *Block) Dirty() bool { return !b.HasLowerCopy() && b.InAny() }

// HasLowerCopy reports whether memory may lose b without loss.
func (b *Block) HasLowerCopy() bool { return b.Cold || b.From != nil }

// LookupLocked returns a visible name, or nil.
func (s *State) LookupLocked(ns, key string) *names.Name {
	s.Mu.AssertHeld()
	return s.Mu.Names.Lookup(ns, key, s.Now)
}

// TickLocked returns the next sequence number.
func (s *State) TickLocked() uint64 { return s.Mu.Names.Tick(s.Now()) }

// BindLocked points the name that r describes at b, in memory and in the tiers' records,
// replacing what it pointed to, as a put of now.
func (s *State) BindLocked(r block.Name, keepTTL bool, b *Block, now time.Time) *names.Name {
	s.Mu.AssertHeld()
	inferLocked(s, &r)
	n := s.Mu.Names.Put(r, keepTTL, &b.Block, now)
	s.ApplyLocked()
	return n
}

// BindRecordedLocked points a name at a block that a tier has on record with it.
func (s *State) BindRecordedLocked(r block.Name, b *Block) {
	s.Mu.AssertHeld()
	s.Mu.Names.Restore(r, &b.Block)
	s.ApplyLocked()
}

// UnbindLocked withdraws n from its block, in memory and in the tiers' records,
// and what the catalogue has of it.
func (s *State) UnbindLocked(n *names.Name) {
	s.Mu.AssertHeld()
	id, seq := NameID{n.Namespace(), n.Key()}, s.TickLocked()
	s.Mu.Names.Withdraw(n, seq)
	s.ApplyLocked()
	s.Watch.InvalidateLocked(id, seq)
}

// WithdrawLocked is UnbindLocked on this rank alone, as of n's own record: n may be a copy, a tick older than a put that stays.
func (s *State) WithdrawLocked(n *names.Name) {
	s.Mu.AssertHeld()
	s.Mu.Names.Withdraw(n, n.Seq())
	s.ApplyLocked()
}

// EndLocked withdraws n, which has ended or is forgotten: a later put of it elsewhere, of which this rank has not heard yet, stays.
func EndLocked(s *State, n *names.Name) {
	if !n.Copied() {
		s.Watch.InvalidateLocked(NameID{n.Namespace(), n.Key()}, lostBelow(n))
	}
	s.WithdrawLocked(n)
}

// lostBelow is the stamp below which puts of n are void once it is lost here. That is no deletion: what other parts have of the same put, which may be
// durable, counts on. But not where this rank's own files have a record of it: it would be found, also after a later put elsewhere, and hide nothing once its file goes.
func lostBelow(n *names.Name) uint64 {
	if BlockOf(n).Recorded {
		return max(n.Put(), n.Seq()) + 1
	}
	return n.Put()
}

// KeepNameLocked points the name that r describes at b, in memory and in the tiers' records,
// with the put stamp r.Seq: another rank has put it, for bytes that lie here. A later put
// of the name for b stays what it is. The record has a sequence number of at least seq. It reports
// whether the files took the record; if not, it is as if the name was read from there.
func KeepNameLocked(s *State, r block.Name, b *Block, seq uint64) bool {
	n := s.Mu.Names.Get(r.Namespace, r.Key)
	if n != nil && BlockOf(n) == b && n.Put() >= r.Seq { // it may be leased
		s.Mu.Names.SetOwn(n)
	} else {
		s.BindRecordedLocked(r, b)
		n = s.Mu.Names.Get(r.Namespace, r.Key)
	}
	if n == nil || BlockOf(n) != b {
		return false
	}
	before := s.Mu.Writes.LinkSeq
	s.Mu.Names.Raise(n, seq)
	if s.ApplyLocked(); s.Mu.Writes.LinkSeq > before {
		return true
	}
	s.Mu.Names.SetCopied(n)
	return false
}

// MemoryOf returns where other ranks may read b in memory, nil for nowhere. Where there is no region the
// offset counts from the block's start.
func MemoryOf(s *State, b *Block) (at *directory.Memory) {
	s.Mu.AssertHeld()
	for _, m := range s.Mem {
		if !b.In(m.Index) {
			continue
		}
		if p, err := m.Memory.Place(b.Info.ID); err == nil {
			mapped := m.Memory.Region() != nil
			if at == nil || mapped { // a copy that is read without a buffer is better
				at = &directory.Memory{Region: uint32(m.Index), Offset: max(p.Offset, 0), Generation: p.Generation}
			}
			if mapped {
				break
			}
		}
	}
	return at
}

// VanishLocked ends all names of a block whose bytes are nowhere any more, or only where the catalogue has them.
func (s *State) VanishLocked(b *Block) {
	s.Mu.AssertHeld()
	if b.Used && b.From != nil && s.Cold != nil {
		s.Cold.recent.Use(recentOf(b.Info.ID))
	}
	for all := b.Names(); len(all) > 0; all = b.Names() {
		n := all[len(all)-1]
		if b.From == nil && !n.Copied() {
			s.Watch.InvalidateLocked(NameID{n.Namespace(), n.Key()}, lostBelow(n))
			s.Mu.Names.Drop(n)
		} else { // where it was put, or lies, it stays
			s.Mu.Names.Retire(n)
		}
		s.ApplyLocked()
	}
	s.ForgetLocked(b)
}

// NameID identifies a name: its namespace and key.
type NameID struct{ NS, Key string }

// FoundLocked returns the block that a tier or another rank has, a new one if
// it is not there. It is nil when they disagree on what the id holds: neither
// copy but the first is believed.
func (s *State) FoundLocked(info block.Info) *Block {
	s.Mu.AssertHeld()
	b := s.Mu.Blocks[info.ID]
	switch {
	case b == nil:
		b = NewBlock(info)
		s.Mu.Blocks[info.ID] = b
		s.Count.Stats.BytesStored += info.Size
	case b.Info != info:
		s.LogLocked(slog.LevelError, "tiers disagree on a block; the second copy is not used", "block", info.ID)
		return nil
	}
	return b
}

// leastAlias is the least block of which other names are counted as aliases:
// what is smaller is no KV block, but what engines put beside them, which may be
// the same for all.
const leastAlias = 4 << 10

// IsAlias reports whether a name of the namespace, to become one of b, finds
// another there: the same content came under another key. n is the name as it
// is, nil when there is none.
func (b *Block) IsAlias(n *names.Name, ns string) bool {
	if b.Info.Size < leastAlias || n != nil && BlockOf(n) == b {
		return false
	}
	return b.HasNameIn(ns)
}
