package cascade

import (
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// blockState is one stored block: its facts and names, and where it is.
type blockState struct {
	names.Block
	at    [maxMemory]place
	cold  bool     // in the cold tier
	below standing // of this rank's blocks there

	// from is the foreign segment that this clean copy came from, or nil. Such a
	// copy is not dirty, and leaves as it came.
	from *directory.Segment

	linkSeq uint64 // Store.mu.linkSeq when the cold tier was last given a name of it

	busy    int    // views and copies in flight: reasons not to forget it
	writing bool   // on its way to the cold tier
	fetch   *fetch // on its way from the cold tier

	countedDirty, countedPending bool // in Stats: see accountLocked

	fingerprint uint64 // see fingerprintLocked; 0 before the first name
}

// place is a block's residence in one memory tier, where it is. stay is another
// for each residence.
type place struct {
	node policy.Node
	stay uint64
}

func newBlock(info block.Info) *blockState {
	b := &blockState{Block: names.Block{Info: info}}
	b.Owner = b
	return b
}

// stateOf returns the block that n stands for, nil of a placeholder.
func stateOf(n *names.Name) *blockState { return ownerOf(n.Block()) }

func ownerOf(b *names.Block) *blockState {
	if b == nil {
		return nil
	}
	return b.Owner.(*blockState)
}

func (b *blockState) dirty() bool { return !b.hasLowerCopy() && b.InAny() }

// hasLowerCopy reports whether memory may lose b without loss.
func (b *blockState) hasLowerCopy() bool { return b.cold || b.from != nil }

// lookupLocked returns a visible name, or nil.
func (s *Store) lookupLocked(ns, key string) *names.Name {
	return s.mu.names.Lookup(ns, key, s.now)
}

// tickLocked returns the next sequence number.
func (s *Store) tickLocked() uint64 { return s.mu.names.Tick(s.now()) }

// bindLocked points the name e at b, in memory and in the tiers' records,
// replacing what it pointed to.
func (s *Store) bindLocked(e Entry, b *blockState) *names.Name {
	b.from = nil // the catalogue does not have this name of it
	n := s.mu.names.Put(block.Name{
		Namespace: e.Namespace, Key: e.Key, Parent: e.Parent,
		Prefix: e.Prefix, Bound: e.Bound, Expires: e.Expires,
	}, e.KeepTTL, &b.Block, s.now())
	s.applyLocked()
	return n
}

// bindRecordedLocked points a name at a block that a tier has on record with it.
func (s *Store) bindRecordedLocked(r block.Name, b *blockState) {
	s.mu.names.Restore(r, &b.Block)
	s.applyLocked()
}

// unbindLocked withdraws n from its block, in memory and in the tiers' records,
// and what the catalogue has of it.
func (s *Store) unbindLocked(n *names.Name) {
	id, seq := nameID{n.Namespace(), n.Key()}, s.tickLocked()
	s.withdrawLocked(n, seq)
	s.invalidateLocked(id, seq)
}

// withdrawLocked is unbindLocked on this rank alone, as of a tick.
func (s *Store) withdrawLocked(n *names.Name, seq uint64) {
	s.mu.names.Withdraw(n, seq)
	s.applyLocked()
}

// unbindBeforeLocked unbinds a name that was put before the given stamp, and
// reports whether there was one.
func (s *Store) unbindBeforeLocked(ns, key string, stamp uint64) bool {
	s.invalidateLocked(nameID{ns, key}, stamp)
	n := s.mu.names.Get(ns, key)
	if n == nil || n.Block() == nil || n.Put() >= stamp {
		return false
	}
	s.unbindLocked(n)
	return true
}

// vanishLocked ends all names of a block whose bytes are nowhere any more.
func (s *Store) vanishLocked(b *blockState) {
	for all := b.Names(); len(all) > 0; all = b.Names() {
		n := all[len(all)-1]
		if b.from == nil {
			s.invalidateLocked(nameID{n.Namespace(), n.Key()}, n.Put())
		}
		s.mu.names.Drop(n)
		s.applyLocked()
	}
	s.forgetLocked(b)
}
