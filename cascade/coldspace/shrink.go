package coldspace

import (
	"errors"
	"fmt"

	"cascadekv/cascade/residency"
	"cascadekv/internal/losslog"
)

// liveShare is how much of the budget live blocks may take: what is dead takes
// the rest until it is merged away.
const liveShare = 0.8

// shrinkStep bounds the blocks that one turn of shrinking gives up, for it
// holds the mutex.
const shrinkStep = 1000

var errColdFull = errors.New("cascade: the budget of the cold tier is smaller than what memory keeps of it: raise lustre.budget")

// Shrink gives up blocks of the cold tier until it keeps its budget. Where
// everything is held the tier takes no writes for a while.
func (cs *Space) Shrink() {
	cs.rankCold()
	for done := false; !done; {
		cs.state.Mu.Lock()
		var err error
		if done, err = cs.shrinkSomeLocked(); err != nil {
			cs.state.Mu.Writes.ColdDown = cs.state.Now().Add(residency.ColdRetry)
			cs.state.NoteColdLocked(err)
		}
		if done {
			cs.mergeSoonLocked()
		}
		cs.state.WakeWaitersLocked()
		cs.state.Mu.Unlock()
	}
}

func (cs *Space) shrinkSomeLocked() (done bool, err error) {
	own := cs.coldBudgetLocked() // 1 where spilled files take all of it: what is old leaves then, for those to be loaded
	budget := int64(liveShare * float64(own))
	for range shrinkStep {
		if !cs.state.RanksColdLocked() || own == 0 || cs.state.Cold.Loads > 0 || cs.state.Cold.Bytes <= budget {
			return true, nil
		}
		b := cs.state.Cold.VictimLocked()
		if b == nil {
			return true, cs.overBudgetLocked()
		}
		if !b.Below.Old && len(cs.guarded.Orphans.Left)+len(cs.guarded.Spilled) > 0 {
			return true, nil // what is old is held, or to be adopted or loaded first
		}
		if err := cs.state.Cold.Files.Evict(b.Info.ID); err != nil {
			cs.state.NoteColdLocked(err)
		}
		cs.state.Cold.LeaveLocked(b, true)
		cs.state.Cold.Stats.Evicted++
		if !b.InAny() { // what is in memory is held, but for the deep level's
			cs.state.Count.LostLocked(losslog.Evicted, cs.state.Cold, b.Names()...)
			cs.state.VanishLocked(b)
		}
	}
	return false, nil
}

// overBudgetLocked returns an error where what is held in the cold tier exceeds the
// budget. Low-space mode is none: the tier decides what it takes, and what is held
// now is given up when memory lets go of it.
func (cs *Space) overBudgetLocked() error {
	budget := int64(liveShare * float64(cs.state.Limits.Load().ColdBytes))
	if budget == 0 || cs.state.Cold.Bytes <= budget {
		return nil
	}
	return fmt.Errorf("%w; %d bytes of %d are in use", errColdFull, cs.state.Cold.Bytes, budget)
}
