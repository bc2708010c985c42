package coldspace

import (
	"context"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

const (
	// mergeEvery is how often the cold tier is asked to merge.
	mergeEvery = 10 * time.Second

	// mergeDeadline bounds one merge; what it moved by then stays moved.
	mergeDeadline = 10 * time.Minute
)

// MergeInBackground has the cold tier give back the space of what it does not
// hold any more.
func (cs *Space) MergeInBackground(ctx context.Context) {
	defer fault.Guard()()
	tick := time.NewTicker(mergeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-cs.mergeNow:
		}
		cs.MergeAll(ctx)
	}
}

// MergeAll gives up what another rank keeps too, spills what may be, adopts what is due, has the
// cold tier merge, and evacuates segments where that does not help, until there is nothing
// more to gain. One call at a time does so: what one has loaded another might let go of before
// it is known which chains go on in it.
func (cs *Space) MergeAll(ctx context.Context) {
	cs.merging.Lock()
	defer cs.merging.Unlock()
	cs.reloadSeconds(ctx)
	cs.shared.GiveUpSeconds(ctx)
	cs.SpillAll(ctx)
	cs.ReloadWasted(ctx)
	cs.AdoptDue(ctx)
	for cs.MergeOnce(ctx) || cs.Evacuate(ctx) {
	}
	cs.MergedAll()
}

// MergeOnce reports whether merging again may be worth it. While what upkeep moved is not
// repaid it does nothing, unless merging is what frees the space that the tier lacks.
func (cs *Space) MergeOnce(ctx context.Context) bool {
	if !cs.mayMerge() {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, mergeDeadline)
	defer cancel()
	began := cs.state.Now()
	m, err := cs.state.Cold.Files.Merge(limited, cs.mergeBudget(), cs.moved)
	cs.oweMerged()
	if m.Merges > 0 {
		cs.state.Log.Info("merged segments", "tier", cs.state.ColdName(), "segments", m.Segments, "blocks", m.Blocks, "bytes", m.Bytes,
			"freed", m.Freed(), "duration", cs.state.Now().Sub(began))
	}
	if err != nil && ctx.Err() == nil {
		cs.state.Mu.Lock()
		defer cs.state.Mu.Unlock()
		cs.state.NoteColdLocked(err)
	}
	return m.Segments > 0 && err == nil
}

// mayMerge reports whether the budgets of what is read and written allow a merge.
func (cs *Space) mayMerge() bool {
	cs.oweMerged()
	if !cs.state.Cold.Reads.Owes() && !cs.state.Cold.Writes.Owes() {
		return true
	}
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	return cs.guarded.LowSpace.Exceeds(cs.usedBelow())
}

// oweMerged counts what merges have moved since the last call: also of one that was left
// behind and went on.
func (cs *Space) oweMerged() {
	all := cs.state.Cold.Files.Stats().Merged
	if all == nil {
		return
	}
	cs.state.Mu.Lock()
	was := cs.guarded.merged
	cs.guarded.merged = *all
	cs.state.Mu.Unlock()
	cs.state.Cold.Reads.Owe(int64(all.Bytes - was.Bytes))
	cs.state.Cold.Writes.Owe(int64(all.Written - was.Written))
}

// moved publishes where blocks lie after a merge.
func (cs *Space) moved(ids []block.ID) {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	for _, id := range ids {
		if b := cs.state.Mu.Blocks[id]; b != nil {
			cs.others.EnqueuePublishAllLocked(b)
			cs.shared.MovedLocked(b)
		}
	}
}
