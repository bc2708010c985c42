package load

import (
	"cascadekv/cascade/residency"
)

// WaitingColdLocked returns how many requests wait for a block that is on its way
// from the cold tier. State.Mu is held.
func (ld *Loader) WaitingColdLocked(b *residency.Block) int {
	if f := ld.guarded.fetches[source{block: b}]; f != nil {
		return f.waiters
	}
	return 0
}

// WaitingLocked returns how many requests wait for a name that is on its way from
// elsewhere, and whether it has landed already. State.Mu is held.
func (ld *Loader) WaitingLocked(id residency.NameID) (waiters int, here bool) {
	if f := ld.guarded.fetches[source{name: id}]; f != nil {
		return f.waiters, f.landed != nil
	}
	return 0, false
}

// PrefetchedLocked returns how many blocks have landed, and the
// bytes of these and of those on their way. State.Mu is held.
func (ld *Loader) PrefetchedLocked() (blocks int, bytes int64) {
	for _, f := range ld.guarded.fetches {
		if f.landed != nil {
			blocks++
		}
	}
	return blocks, ld.guarded.prefetchBytes
}

// Idle reports whether nothing is read from files.
func (ld *Loader) Idle() bool { return len(ld.fetching.taken) == 0 }

// HoldReads keeps blocks from being read from other ranks' memory until release is
// called. It waits for those under way.
func (ld *Loader) HoldReads() (release func()) {
	for range maxReads {
		ld.reading <- struct{}{}
	}
	return func() {
		for range maxReads {
			<-ld.reading
		}
	}
}

// AwayLocked returns how many blocks of the cold tier are on their way from other ranks' memory.
// State.Mu is held.
func (ld *Loader) AwayLocked() (n int) {
	for from, f := range ld.guarded.fetches {
		if from.block != nil && f.away {
			n++
		}
	}
	return n
}
