package eviction

import (
	"context"
	"errors"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/losslog"
	"cascadekv/tiers"
)

// Price is what may be given up for room in memory.
type Price uint8

const (
	Unheld   Price = iota // for reads that have memory of their own else: CopyOnly, and no wait where all is held
	CopyOnly              // for reads: what is in the cold tier or in another one too
	AnyBlock              // for puts: whatever the policy gives up next
)

// errHeld: a load that waited for what is held might wait for what it holds itself.
var errHeld = errors.New("all blocks there are in use")

// errOnlyCopy: what the policy gives up next would be lost for a read.
var errOnlyCopy = errors.New("the next victim is the only copy of its block, and what lies below takes no writes, or there is no budget for one")

// Reserve returns room in memory tier m, made by eviction where needed
// (Algorithm 1, lines 4 to 11). Where there is a cold tier, no only copy of a block
// is lost for a read. Errors: ErrNoRoom, ErrTooLarge, ErrClosed.
func (e *Evictor) Reserve(ctx context.Context, m *residency.Level, size int64, most Price) (tiers.Slot, error) {
	if e.tooLarge(m, size) {
		return nil, e.state.RoomError(m, size, tiers.ErrTooLarge)
	}
	var deadline context.Context
	for {
		if e.fits(m, size) {
			slot, err := m.Memory.Reserve(size)
			if err == nil {
				return slot, nil
			}
			if !errors.Is(err, tiers.ErrFull) {
				return nil, e.state.RoomError(m, size, err)
			}
		}
		if deadline == nil {
			var cancel context.CancelFunc
			deadline, cancel = context.WithTimeout(ctx, e.state.Limits.Load().RoomDeadline)
			defer cancel()
		}
		if err := e.EvictOne(deadline, m, most); err != nil {
			return nil, e.state.RoomError(m, size, err)
		}
	}
}

// fewVictims bounds what ReserveNow evicts.
const fewVictims = 8

// ReserveNow is Reserve without a wait: nil where a victim could not leave at once, or a few would
// not do, where memory is still being made ready, and where Reserve would fail.
func (e *Evictor) ReserveNow(m *residency.Level, size int64, most Price) tiers.Slot {
	if e.tooLarge(m, size) {
		return nil
	}
	for range fewVictims {
		if e.fits(m, size) {
			slot, err := m.Memory.ReserveNow(size)
			if err == nil {
				return slot
			}
			if !errors.Is(err, tiers.ErrFull) {
				break
			}
		}
		if !e.evictNow(m, most) {
			break
		}
	}
	return nil
}

// evictNow is EvictOne if a victim can leave at once.
func (e *Evictor) evictNow(m *residency.Level, most Price) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	b := e.VictimLocked(m)
	step, why := e.decideLocked(b, m)
	if step == policy.Copy {
		residency.Wake(e.state.DemoterWake) // for the next one
	}
	if e.state.CheckOpenLocked() != nil || step != policy.Drop || tooDear(why, most) {
		return false
	}
	e.evictLocked(b, m, why)
	return true
}

// tooLarge reports whether a block is larger than Options.Capacity: nothing that leaves makes room for it.
func (e *Evictor) tooLarge(m *residency.Level, size int64) bool {
	return e.state.Capacity > 0 && m.Index == 0 && size > e.state.Capacity
}

// fits applies Options.Capacity.
func (e *Evictor) fits(m *residency.Level, size int64) bool {
	return e.state.Capacity == 0 || m.Index > 0 || m.Memory.Usage().Payload+size <= e.state.Capacity
}

// EvictOne makes memory tier m smaller by one block, or waits until that may
// have become possible.
func (e *Evictor) EvictOne(ctx context.Context, m *residency.Level, most Price) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.state.Mu.Lock()
	if err := e.state.CheckOpenLocked(); err != nil {
		e.state.Mu.Unlock()
		return err
	}
	b := e.VictimLocked(m)
	step, why := e.decideLocked(b, m)
	switch step {
	case policy.Drop:
		if tooDear(why, most) {
			e.state.Mu.Unlock()
			return errOnlyCopy
		}
		e.evictLocked(b, m, why)
		e.state.Mu.Unlock()
		return nil
	case policy.Copy:
		e.state.Mu.Unlock()
		residency.Wake(e.state.DemoterWake)
		return e.Demote(ctx, b, m, e.state.Mem[m.Index+1], most)
	case policy.Stay:
		if most == Unheld {
			e.state.Mu.Unlock()
			return errHeld
		}
	case policy.Keep:
		e.state.Leases.KeepLocked(b)
	case policy.Write:
		e.state.WakeCleanerLocked(true)
	case policy.Sync:
		e.state.RequestSyncLocked()
	}
	return e.waitForChangeLocked(ctx) // unlocks
}

// tooDear reports whether a victim, which would be dropped for that reason, is the only copy of its block and
// more than may be given up.
func tooDear(why policy.Loss, most Price) bool {
	return most != AnyBlock && (why == policy.Refused || why == policy.OverBudget)
}

// VictimLocked returns the block that m's policy gives up next, nil for none.
func (e *Evictor) VictimLocked(m *residency.Level) *residency.Block {
	e.state.Mu.AssertHeld()
	e.state.Requests.BeginLocked() // what clients read by themselves is no victim
	if b := m.Next(); b != nil {
		return b
	}
	return e.breakRingLocked(m)
}

// breakRingLocked finds a victim when every block is held and the only holds on
// one of them are those of children: blocks with equal bytes at several places
// of their chains can hold each other in a ring.
func (e *Evictor) breakRingLocked(m *residency.Level) *residency.Block {
	if int64(e.state.Count.Stats.Views) > e.state.Activity.Kept() || e.state.Mu.Writes.Batch.InFlight || e.state.Mu.Names.HeldBytes() > 0 {
		return nil // those end by themselves
	}
	return m.Find(func(b *residency.Block) bool { return b.Busy == 0 && len(b.Names()) > 1 })
}

// decideLocked decides what happens next to b, m's victim, and with policy.Drop what is lost.
func (e *Evictor) decideLocked(b *residency.Block, m *residency.Level) (policy.Step, policy.Loss) {
	if b == nil {
		return policy.Stay, policy.NoLoss
	}
	v := policy.Victim{
		Last: m == e.state.Last(), Refused: e.refusedLocked(b, m),
		Below: b.HasLowerCopy(), Unsynced: m.Index >= e.state.Host().Index && b.LinkSeq > e.state.Mu.Writes.SyncedSeq,
		Leased: b.Leased(), Unworthy: residency.UnworthyLocked(e.state, b),
	}
	if !v.Last {
		v.Demotion = m.Policy.Demotion(e.state.MetaLocked(b))
	}
	for t := range e.state.Mem {
		v.Above = v.Above || t < m.Index && b.In(t)
		v.Next = v.Next || t == m.Index+1 && b.In(t)
	}
	return policy.Decide(v, residency.FilesLocked(e.state))
}

// evictLocked takes a victim out of m. With its last copy go its names, and why is counted.
func (e *Evictor) evictLocked(b *residency.Block, m *residency.Level, why policy.Loss) {
	e.state.Mu.AssertHeld()
	m.Stats.Evicted++
	if m == e.state.LowestLocked() {
		e.state.Mu.Writes.Batch.Clean--
	}
	if m == e.state.Host() {
		e.state.Mu.Writes.Demoted--
	}
	e.state.DropLocked(b, m, true)
	reason := losslog.Evicted
	switch why {
	case policy.Refused:
		e.state.Count.Stats.Lost++
	case policy.OverBudget:
		e.state.Count.Stats.Shed++
		reason = losslog.Shed
	case policy.Generated:
		e.state.Count.Stats.Generated++
		reason = losslog.Generated
	case policy.Unasked:
		e.state.Count.Stats.Unwritten++
		reason = losslog.Unwritten
	}
	if !b.Cold && !b.InAny() {
		e.state.Count.LostLocked(reason, m, b.Names()...)
		e.state.VanishLocked(b)
	}
}

// Demote copies a victim of m to the next memory tier, so that the next look
// finds it there and evicts it, or that the tier refuses it.
func (e *Evictor) Demote(ctx context.Context, b *residency.Block, m, next *residency.Level, most Price) error {
	e.state.Mu.Lock()
	if !b.In(m.Index) || b.In(next.Index) {
		e.state.Mu.Unlock()
		return nil
	}
	v, err := e.state.PinInLocked(b, m, m)
	e.state.Mu.Unlock()
	if err != nil {
		return err
	}
	defer func() { residency.AfterIO(err, v.Release) }()
	copied := false
	if next == e.state.Deep() {
		v.Background() // whoever waits for it has a request of its own
		copied, err = e.copyDeep(ctx, v, next, most)
	} else {
		copied, err = e.copyTo(ctx, v, next, most)
	}
	if errors.Is(err, tiers.ErrCorrupt) || errors.Is(err, errRefused) {
		return nil // it is withdrawn, and has made room; or goes another way
	} else if err != nil || !copied {
		return err
	}
	e.state.Mu.Lock()
	m.Stats.Demoted++
	e.state.Mu.Unlock()
	return nil
}

// waitPoll bounds a wait for room: leases end and the cold tier comes back
// without a notification.
const waitPoll = 20 * time.Millisecond

// waitForChangeLocked waits until something was released. It is called with the
// mutex held and releases it.
func (e *Evictor) waitForChangeLocked(ctx context.Context) error {
	changed := e.state.Mu.Waiters.Join()
	e.state.Mu.Unlock()
	timer := time.NewTimer(waitPoll)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
