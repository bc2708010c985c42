package load

import (
	"math"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

const (
	// PrefetchBlocks is how many blocks of a chain are fetched ahead of the gets,
	// or as many as make prefetchAhead bytes if that is more, but no more than are
	// read together.
	PrefetchBlocks = 8
	prefetchAhead  = 1 << 20

	// maxPrefetchBytes bounds what is prefetched of all chains together.
	maxPrefetchBytes = 64 << 20
)

// Prefetch is the blocks of a probed chain that are elsewhere: they are fetched some way
// ahead of the gets. Guarded by State.Mu once it is started.
type Prefetch struct {
	ns     string
	keys   []string
	copies [][]directory.Statement // in parallel; nil: the catalogue has it, and is asked when the block is fetched
	size   int64                   // of the first block

	next  int
	step  int // so many are fetched together, once as many were asked for
	asked int // since then
}

// NewPrefetch returns one of no blocks yet, of a namespace, for at most so many.
func NewPrefetch(ns string, most int) *Prefetch {
	return &Prefetch{ns: ns, keys: make([]string, 0, most), copies: make([][]directory.Statement, 0, most)}
}

// Add adds the next block of the chain. The key is only read until StartPrefetch returns.
func (a *Prefetch) Add(key string, h others.Hit) {
	if len(a.keys) == 0 {
		a.size = h.Size
	}
	a.keys, a.copies = append(a.keys, key), append(a.copies, h.Copies)
}

func (a *Prefetch) name(i int) residency.NameID { return residency.NameID{NS: a.ns, Key: a.keys[i]} }

// StartPrefetch starts to fetch the first blocks of a. It does not wait until those are
// found that only the catalogue has.
func (ld *Loader) StartPrefetch(a *Prefetch) {
	if len(a.keys) == 0 {
		return
	}
	a.keys = block.CopyKeys(a.keys) // they may be parts of a request
	a.step = min(max(1, int(prefetchAhead/PrefetchBlocks/max(1, a.size))), partReads/PrefetchBlocks)
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	ld.advanceLocked(a, PrefetchBlocks*a.step)
}

// advanceLocked starts the chain's next n fetches.
func (ld *Loader) advanceLocked(a *Prefetch, n int) {
	var fresh []*Fetch
	later := make([]int, 0, min(n, len(a.keys)-a.next)) // those that only the catalogue has
	for a.next < len(a.keys) && len(fresh)+len(later) < n && !ld.prefetchEndsLocked() {
		i := a.next
		a.next++
		if a.copies[i] == nil {
			later = append(later, i)
		} else {
			ld.prefetchLocked(a, i, a.copies[i], &fresh)
		}
	}
	ld.StartLocked(fresh)
	if len(later) > 0 {
		ld.guarded.lookups.addLocked(lookup{a, later})
	}
}

// prefetchEndsLocked reports whether nothing more may be prefetched.
func (ld *Loader) prefetchEndsLocked() bool {
	return ld.guarded.prefetchBytes >= maxPrefetchBytes || ld.state.Mu.Closed
}

// prefetchLocked makes the fetch of a chain's i-th block, which the caller must let
// StartLocked have, unless the block is on its way or here, or is not what it was.
func (ld *Loader) prefetchLocked(a *Prefetch, i int, copies []directory.Statement, fresh *[]*Fetch) {
	id := a.name(i)
	if others.OutdatedLocked(ld.others, copies) || ld.guarded.fetches[source{name: id}] != nil || residency.VisibleLocked(ld.state, id.NS, id.Key) != nil {
		return
	}
	f := ld.newRemoteLocked(id, copies, eviction.Unheld, fresh)
	f.prefetch, f.reserved = a, max(copies[0].Info.Size, 1)
	ld.guarded.prefetchBytes += f.reserved
	ld.state.Count.Stats.Prefetched++
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
	ld.state.Count.Stats.PrefetchHits++
	ld.state.Requests.Prefetched.Odds.Note(ld.state.Age(ld.state.Now()), 1)
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

// InvalidateFetchesLocked is InvalidateFetchLocked for all names of a namespace, or of all.
func (ld *Loader) InvalidateFetchesLocked(ns string, all bool, before uint64) {
	ld.state.Mu.AssertHeld()
	for from := range ld.guarded.fetches {
		if from.block == nil && (all || from.name.NS == ns) {
			ld.InvalidateFetchLocked(from.name, before)
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
		if f.prefetch != nil {
			ld.state.Count.Stats.PrefetchWasted++
			ld.state.Requests.Prefetched.Odds.Note(ld.state.Age(ld.state.Now()), 0)
		}
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
