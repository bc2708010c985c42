package coldspace

import (
	"context"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
)

const (
	// evacuateShare bounds what is loaded into memory at once, as one part in so many
	// of Ladder.Host; ownShare once this rank has nothing left of earlier runs,
	// which would leave first.
	evacuateShare, ownShare = 8, 2

	// evacuateOf is how many segments one is chosen from.
	evacuateOf = 8
)

// Evacuate is for a full cold tier that cannot merge, because it has no space for
// what it would move: heads of chains, and what is in memory, keep a little of every
// segment. It loads the live blocks of a sparse segment into memory, where they are dirty,
// and evicts them from the tier, so that the file can be unlinked. It reports whether
// there was such a segment.
func (cs *Space) Evacuate(ctx context.Context) bool {
	if !cs.mustEvacuate() {
		return false
	}
	ids := cs.sparse()
	views, complete := cs.takeUp(ctx, ids)
	defer func() {
		for _, v := range views {
			v.Release()
		}
	}()
	if len(ids) == 0 || !complete {
		return false
	}
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	defer cs.state.WakeWaitersLocked()
	for _, id := range ids {
		b := cs.state.Mu.Blocks[id]
		if b == nil || !b.Cold || b.Below.OtherOwner || !b.InAny() && b.Needed() {
			continue
		}
		if err := cs.state.Cold.Files.Evict(id); err != nil {
			cs.state.NoteColdLocked(err)
			continue
		}
		cs.state.Cold.LeaveLocked(b, false)
		cs.state.Cold.Stats.Evicted++
		if !b.InAny() {
			cs.state.Count.LostLocked(losslog.Evicted, cs.state.Cold, b.Names()...)
			cs.state.VanishLocked(b)
		}
	}
	cs.state.Mu.Writes.ColdDown = cs.state.Now() // what is dirty now should not wait
	cs.state.WakeCleanerLocked(false)
	return true
}

// sparse returns the blocks of the sparsest segment that takes little of memory to load.
// What is in memory anyway takes none.
func (cs *Space) sparse() []block.ID {
	room, _ := cs.state.Host().Occupancy()
	cs.state.Mu.Lock()
	if cs.state.Cold.Old > 0 {
		room /= evacuateShare
	} else {
		room /= ownShare
	}
	cs.state.Mu.Unlock()
	for _, ids := range cs.state.Cold.Files.Sparsest(evacuateOf) {
		var loads int64
		if cs.eachStep(ids, func(id block.ID) bool {
			if b := cs.state.Mu.Blocks[id]; b != nil && !b.InAny() {
				loads += b.Info.Size
			}
			return loads <= room
		}) {
			return ids
		}
	}
	return nil
}

// mustEvacuate reports whether a segment is to be evacuated.
func (cs *Space) mustEvacuate() bool {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	return cs.guarded.LowSpace.Evacuate(cs.state.Now(), cs.usedBelow())
}

// takeUp loads blocks of the cold tier into memory and holds them there. complete
// is false when one that must not be lost was not loaded.
func (cs *Space) takeUp(ctx context.Context, ids []block.ID) (views []*residency.View, complete bool) {
	var coming, fresh []*load.Fetch
	cs.state.Mu.Lock()
	for _, id := range ids {
		b := cs.state.Mu.Blocks[id]
		if b == nil {
			continue
		}
		if v := cs.state.PinFastestLocked(b); v != nil {
			views = append(views, v.Background())
		} else if f := cs.load.JoinBelowLocked(b, nil, eviction.AnyBlock, &fresh); f != nil {
			coming = append(coming, f)
		}
	}
	cs.load.StartLocked(fresh)
	cs.state.Mu.Unlock()
	within, cancel := cs.state.UntilFetched(ctx)
	defer cancel()
	for _, f := range coming {
		if v := cs.load.Await(within, f); v != nil {
			views = append(views, v.Background())
		}
	}
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	for _, id := range ids {
		if b := cs.state.Mu.Blocks[id]; b != nil && b.Cold && !b.InAny() && b.Needed() {
			return views, false
		}
	}
	return views, true
}
