package coldspace

import (
	"cmp"
	"log/slog"
	"slices"

	"cascadekv/cascade/residency"
)

// NoteFullLocked gives up some of what this rank keeps in the cold tier, which
// refuses blocks for want of room.
func (cs *Space) NoteFullLocked() {
	cs.state.Mu.AssertHeld()
	if used := cs.usedBelow(); cs.guarded.LowSpace.Refuse(cs.state.Now(), used) {
		cs.state.LogLocked(slog.LevelWarn, "the cold tier is full: what is least worth keeping in it is given up, and the rest merged",
			"tier", cs.state.ColdName(), "used", used, "limit", cs.guarded.LowSpace.Limit())
	}
	if cs.guarded.LowSpace.MergeDue() {
		cs.state.WakeCleanerLocked(false)
	}
}

// usedBelow is what the cold tier takes for this rank, in bytes.
func (cs *Space) usedBelow() int64 {
	u := cs.state.Cold.Files.Usage()
	return u.Used - u.OtherOwners
}

// mergeBudget is what all files of this rank's own may take, for those who do not hold
// the mutex; 0 is no limit.
func (cs *Space) mergeBudget() int64 {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	budget := cs.coldBudgetLocked()
	for _, f := range cs.guarded.Spilled {
		if budget > 0 { // what is spilled takes of it
			budget += f.Bytes
		}
	}
	return budget
}

// mergeSoonLocked has the cold tier merge at once if low-space mode requires it,
// once blocks were given up, and adopt orphans if that is due.
func (cs *Space) mergeSoonLocked() {
	if !cs.guarded.LowSpace.MergeDue() && (cs.state.Cold.Loads > 0 || !cs.state.RanksColdLocked() || cs.shareLocked().Adopt() == 0) {
		return
	}
	cs.guarded.LowSpace.MergeRequested()
	residency.Wake(cs.mergeNow)
}

// MergedAll records that there is nothing to merge for the moment.
func (cs *Space) MergedAll() {
	cs.state.Mu.Lock()
	defer cs.state.Mu.Unlock()
	cs.guarded.LowSpace.Merged()
}

// rankCold gives a cold tier without a budget its policy when low-space mode is
// first entered, or when names are near their bound, and has it rank the blocks that
// are there, as old as their first names.
func (cs *Space) rankCold() {
	type aged struct {
		block *residency.Block
		seq   uint64
	}
	var all []aged
	cs.state.Mu.Lock()
	needed := (cs.guarded.LowSpace.Limit() > 0 || cs.nameRoom.TightLocked()) && !cs.state.RanksColdLocked()
	if needed {
		if err := cs.state.Cold.Rank(cs.state.Last().Stats.Policy, cs.guarded.LowSpace.Limit()); err != nil {
			cs.state.Mu.Unlock()
			cs.state.Log.Error("the cold tier gets no policy", "err", err)
			return
		}
		cs.state.Cold.Ranking = true
		looked := 0
		for _, b := range cs.state.Mu.Blocks {
			if looked++; looked%residency.LookStep == 0 { // those that come meanwhile are ranked as they come
				cs.state.Mu.Unlock()
				cs.state.Mu.Lock()
			}
			if b.Cold && !b.Below.OtherOwner && len(b.Names()) > 0 {
				all = append(all, aged{b, b.Names()[0].Seq()})
			}
		}
	}
	cs.state.Mu.Unlock()
	slices.SortFunc(all, func(x, y aged) int { return cmp.Compare(x.seq, y.seq) })
	for len(all) > 0 {
		n := min(len(all), shrinkStep)
		cs.state.Mu.Lock()
		for _, one := range all[:n] {
			if b := one.block; b.Cold && !b.Below.OtherOwner && cs.state.Mu.Blocks[b.Info.ID] == b {
				cs.state.Cold.RankLocked(b, false)
				cs.state.Cold.SyncHoldLocked(b)
			}
		}
		cs.state.Mu.Unlock()
		all = all[n:]
	}
	if needed {
		cs.state.Mu.Lock()
		cs.state.Cold.Ranking = false
		cs.state.Mu.Unlock()
	}
}
