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
// more to gain.
func (cs *Space) MergeAll(ctx context.Context) {
	cs.reloadSeconds(ctx)
	cs.shared.GiveUpSeconds(ctx)
	cs.SpillAll(ctx)
	cs.ReloadWasted(ctx)
	cs.AdoptDue(ctx)
	for cs.MergeOnce(ctx) || cs.Evacuate(ctx) {
	}
	cs.MergedAll()
}

// MergeOnce reports whether merging again may be worth it.
func (cs *Space) MergeOnce(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, mergeDeadline)
	defer cancel()
	if cs.state.Cold.Reads.Await(limited) != nil || cs.state.Cold.Writes.Await(limited) != nil {
		return false
	}
	began := cs.state.Now()
	m, err := cs.state.Cold.Files.Merge(limited, cs.mergeBudget(), cs.moved)
	cs.state.Cold.Reads.Owe(int64(m.Bytes))
	cs.state.Cold.Writes.Owe(int64(m.Written))
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
