package load

import (
	"math"
	"time"

	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
)

const (
	// PrefetchFor is how long a prefetched block waits for its get. The
	// clients that probe get what they found at once or never.
	PrefetchFor = 2 * time.Second

	// PrefetchBlocks is how many blocks of a chain are fetched ahead of the gets,
	// or as many as make prefetchAhead bytes if that is more, but no more than are
	// read together.
	PrefetchBlocks = 8
	prefetchAhead  = 1 << 20

	// maxPrefetchBytes bounds what is prefetched of all chains together.
	maxPrefetchBytes = 64 << 20
)

// Prefetch is a chain that was probed: the blocks of it that other ranks have are
// fetched some way ahead of the gets. Guarded by State.Mu.
type Prefetch struct {
	IDs    []residency.NameID
	Copies [][]directory.Statement
	next   int
	step   int // so many are fetched together, once as many were asked for
	asked  int // since then
}

// StartPrefetch starts to fetch the first blocks of a probed chain that other
// ranks have.
func (ld *Loader) StartPrefetch(a *Prefetch) {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	a.step = min(max(1, int(prefetchAhead/PrefetchBlocks/max(1, a.Copies[0][0].Info.Size))), partReads/PrefetchBlocks)
	ld.advanceLocked(a, PrefetchBlocks*a.step)
}

// advanceLocked starts the chain's next n fetches.
func (ld *Loader) advanceLocked(a *Prefetch, n int) {
	var fresh []*Fetch
	for a.next < len(a.IDs) && len(fresh) < n && ld.guarded.prefetchBytes < maxPrefetchBytes && !ld.state.Mu.Closed {
		i := a.next
		a.next++
		if others.FromCatalogue(a.Copies[i]) && ld.others.InvalidLocked(&a.Copies[i][0].Name) || ld.guarded.fetches[source{name: a.IDs[i]}] != nil || residency.VisibleLocked(ld.state, a.IDs[i].NS, a.IDs[i].Key) != nil {
			continue
		}
		f := ld.newRemoteLocked(a.IDs[i], a.Copies[i], false, &fresh)
		f.prefetch, f.reserved = a, max(a.Copies[i][0].Info.Size, 1)
		ld.guarded.prefetchBytes += f.reserved
	}
	ld.StartLocked(fresh)
}

// takeLandedLocked serves a get from what was prefetched, and goes on with the
// chain. Somebody else may want it too, so it stays for
// its time.
func (ld *Loader) takeLandedLocked(f *Fetch) *residency.View {
	ld.continuePrefetchLocked(f)
	return ld.landedViewLocked(f.landed, residency.NewBlock(f.landed.info))
}

// continuePrefetchLocked goes on with the chain that f is part of, once f is asked for.
func (ld *Loader) continuePrefetchLocked(f *Fetch) {
	a := f.prefetch
	if a == nil {
		return
	}
	f.prefetch = nil
	if a.asked++; a.asked == a.step {
		a.asked = 0
		ld.advanceLocked(a, a.step)
	}
}

// InvalidateFetchLocked forgets what was fetched, or is being fetched, of puts
// of a name stamped below before: the name has changed here since they were
// located. Those who wait get it all the same.
func (ld *Loader) InvalidateFetchLocked(id residency.NameID, before uint64) {
	ld.state.Mu.AssertHeld()
	if len(ld.guarded.fetches) == 0 {
		return
	}
	if f := ld.guarded.fetches[source{name: id}]; f != nil && f.copies[0].Name.Seq < before {
		ld.dropLandedLocked(f)
		delete(ld.guarded.fetches, source{name: id})
	}
}

// InvalidateFetchesLocked is InvalidateFetchLocked for all puts of all names of a namespace,
// or of all.
func (ld *Loader) InvalidateFetchesLocked(ns string, all bool) {
	ld.state.Mu.AssertHeld()
	for from := range ld.guarded.fetches {
		if from.block == nil && (all || from.name.NS == ns) {
			ld.InvalidateFetchLocked(from.name, math.MaxUint64)
		}
	}
}

// invalidateLanded forgets what was prefetched of some keys, for a get whose
// copies are to stay.
func (ld *Loader) invalidateLanded(ns string, keys []string, which []int) {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	for _, i := range which {
		id := residency.NameID{NS: ns, Key: keys[i]}
		if f := ld.guarded.fetches[source{name: id}]; f != nil && f.landed != nil {
			ld.InvalidateFetchLocked(id, math.MaxUint64)
		}
	}
}

// dropLandedLocked gives back the buffer of f, if it has landed.
func (ld *Loader) dropLandedLocked(f *Fetch) {
	if f.landed != nil {
		ld.guarded.prefetchBytes -= f.reserved
		f.landed.leaveLocked()
		f.landed = nil
	}
}

// SweepLandedLocked gives back what was prefetched and not asked for in
// time.
func (ld *Loader) SweepLandedLocked(now time.Time, all bool) {
	ld.state.Mu.AssertHeld()
	for from, f := range ld.guarded.fetches {
		if f.landed == nil || !all && now.Before(f.landed.until) {
			continue
		}
		ld.dropLandedLocked(f)
		delete(ld.guarded.fetches, from)
	}
}
