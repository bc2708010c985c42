package load

import (
	"context"
	"fmt"
	"slices"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
)

// soonBlocks and soonBytes bound what hints, and look-ups, have on its way from this rank's own files, and its deep level, at once, all together:
// gets wait behind it for their turn to read.
const (
	soonBlocks = 32
	soonBytes  = 64 << 20
)

// onItsWay is what all hints and look-ups together have on its way from this rank's own files. Guarded by State.Mu.
type onItsWay struct {
	blocks int
	bytes  int64
}

func (q *onItsWay) add(blocks int, bytes int64) {
	q.blocks += blocks
	q.bytes += bytes
}

// OnItsWay returns how much hints and look-ups have on its way from this rank's own files.
func OnItsWay(ld *Loader) (blocks int, bytes int64) {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	return ld.guarded.own.blocks, ld.guarded.own.bytes
}

// PrefetchOwn starts to bring into memory the first blocks of a chain that are in this rank's own files, or its deep level, alone, as far as
// the policy lets them in. If they are declared to be asked for soon, these are as many as may be on their way at once;
// else, after a look-up, some at its head, and only while it pays, for they take room.
func PrefetchOwn[K string | []byte](ld *Loader, ns string, keys []K, soon bool) {
	most := soonBlocks
	if !soon {
		most, keys = PrefetchBlocks, keys[:min(len(keys), residency.LookStep)]
	}
	if ld.state.Cold == nil && ld.state.Deep() == nil || !soon && !ld.state.Requests.Prefetched.Pays() {
		return
	}
	for some := range slices.Chunk(keys, residency.LookStep) {
		if most -= prefetchSome(ld, ns, some, most, soon); most == 0 {
			return
		}
	}
}

// prefetchSome is PrefetchOwn of at most so many blocks, and returns how many there are.
func prefetchSome[K string | []byte](ld *Loader, ns string, keys []K, most int, soon bool) int {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	var blocks []*residency.Block
	for _, key := range keys {
		if n := residency.VisibleLocked(ld.state, ns, string(key)); n != nil && !ld.state.InNear(residency.BlockOf(n)) {
			if blocks = append(blocks, residency.BlockOf(n)); len(blocks) == most {
				break
			}
		}
	}
	bringUpLocked(ld, blocks, !soon)
	return len(blocks)
}

// bringUpLocked starts to bring blocks into memory, until as much is on its way as may be. guess: nobody said that
// they will be asked for.
func bringUpLocked(ld *Loader, blocks []*residency.Block, guess bool) {
	var fresh, all []*Fetch
	var taken onItsWay
	own, prefetched := &ld.guarded.own, &ld.state.Requests.Prefetched
	for ; len(blocks) > 0 && own.blocks < soonBlocks && own.bytes < soonBytes; blocks = blocks[1:] {
		b := blocks[0]
		if ld.state.InNear(b) || b.Loading { // it is here, or on its way
			continue
		}
		if guess && prefetched.WaitsLocked(b) {
			continue
		}
		if guess && !prefetched.RoomLocked() {
			break
		}
		if f := ld.JoinBelowLocked(b, nil, eviction.Unheld, &fresh); f != nil {
			f.prefetchOnly = true // it is new: nobody loads the block
			all = append(all, f)
			own.add(1, b.Info.Size)
			taken.add(1, b.Info.Size)
			if guess {
				prefetched.AddLocked(b)
			}
		}
	}
	ld.StartLocked(fresh)
	if len(all) == 0 {
		return
	}
	ld.state.Workers.Go(func() { // nobody waits for it
		ctx, cancel := ld.state.UntilFetched(context.Background())
		defer cancel()
		for _, f := range all {
			if v := ld.Await(ctx, f); v != nil {
				v.Release()
			}
		}
		ld.state.Mu.Lock()
		defer ld.state.Mu.Unlock()
		own.add(-taken.blocks, -taken.bytes)
	})
}

// errNotKept: a block that no get waits for would not stay in memory, for want of room or as the policy has it.
var errNotKept = fmt.Errorf("%w for what is fetched ahead", residency.ErrNoRoom)

// endPrefetch ends a fetch that no get waits for, and reports whether it is one.
func endPrefetch(ld *Loader, f *Fetch) bool {
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	if f.prefetchOnly {
		ld.endLocked(ended{f, nil, errNotKept})
		ld.state.WakeWaitersLocked()
	}
	return f.prefetchOnly
}
