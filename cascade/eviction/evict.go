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
	CopyOnly Price = iota // for reads: what is in the cold tier or in another one too
	AnyBlock              // for puts: whatever the policy gives up next
)

// errOnlyCopy: what the policy gives up next would be lost for a read.
var errOnlyCopy = errors.New("the next victim is the only copy of its block, and the cold tier takes no writes")

// Reserve returns room in memory tier m, made by eviction where needed
// (Algorithm 1, lines 4 to 11). Where there is a cold tier, no only copy of a block
// is lost for a read. Errors: ErrNoRoom, ErrTooLarge, ErrClosed.
func (e *Evictor) Reserve(ctx context.Context, m *residency.Level, size int64, most Price) (tiers.Slot, error) {
	if e.state.Capacity > 0 && m.Index == 0 && size > e.state.Capacity {
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

// ReserveNow is Reserve for a small block, without a wait: nil where a victim could not leave
// at once, where memory is still being made ready, and where Reserve would fail.
func (e *Evictor) ReserveNow(m *residency.Level, size int64) tiers.Slot {
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
		if !e.evictNow(m) {
			break
		}
	}
	return nil
}

// evictNow is EvictOne for a put, if a victim can leave at once.
func (e *Evictor) evictNow(m *residency.Level) bool {
	e.state.Mu.Lock()
	defer e.state.Mu.Unlock()
	b := e.VictimLocked(m)
	if e.state.CheckOpenLocked() != nil || e.demotionOfLocked(b, m) != leaves {
		return false
	}
	e.evictLocked(b, m)
	return true
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
	switch e.demotionOfLocked(b, m) {
	case leaves:
		if most == CopyOnly && e.state.Cold != nil && e.onlyCopyLocked(b, m) && residency.WorthWritingLocked(e.state, b) {
			e.state.Mu.Unlock()
			return errOnlyCopy
		}
		e.evictLocked(b, m)
		e.state.Mu.Unlock()
		return nil
	case copiedToNext:
		e.state.Mu.Unlock()
		return e.Demote(ctx, b, m, e.state.Mem[m.Index+1], most)
	case staysLeased:
		e.state.Leases.HoldLocked(b)
	case awaitsCleaning:
		e.state.WakeCleanerLocked(true)
	case awaitsSync:
		e.state.RequestSyncLocked()
	}
	return e.waitForChangeLocked(ctx) // unlocks
}

// VictimLocked returns the block that m's policy gives up next, nil for none.
func (e *Evictor) VictimLocked(m *residency.Level) *residency.Block {
	e.state.Mu.AssertHeld()
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

// demotion is what must happen before a victim can leave its tier.
type demotion uint8

const (
	stays          demotion = iota // there is no victim now
	leaves                         // nothing: its bytes are below already, or are given up
	copiedToNext                   // it is copied to the next memory tier
	awaitsCleaning                 // the cleaner writes it to the cold tier
	awaitsSync                     // the cold tier makes its names durable
	staysLeased                    // it would be lost, and somebody was promised it
)

// demotionOfLocked decides how b, m's victim, leaves. A victim is demoted: protected
// blocks to the next memory tier, others to the cold one (Algorithm 1, lines 6 to
// 10).
func (e *Evictor) demotionOfLocked(b *residency.Block, m *residency.Level) demotion {
	if b == nil {
		return stays
	}
	if m != e.state.Last() {
		below := b.In(m.Index+1) || b.HasLowerCopy() && m.Policy.Demotion(e.state.MetaLocked(b)) == policy.ToCold
		switch {
		case below, e.state.ColdUpLocked() && !residency.WorthWritingLocked(e.state, b) && m.Policy.Demotion(e.state.MetaLocked(b)) == policy.ToCold:
			return leaves
		case m.Policy.Demotion(e.state.MetaLocked(b)) == policy.ToNext || !e.state.ColdUpLocked():
			return copiedToNext
		}
		return awaitsCleaning
	}
	switch {
	case e.state.ColdUpLocked() && e.state.Mu.Writes.Batch.InFlight && e.state.Mu.Writes.Batch.Clean <= 0:
		// What is being written is colder than b: wait for that instead.
		return awaitsCleaning
	case b.HasLowerCopy() && b.LinkSeq > e.state.Mu.Writes.SyncedSeq && e.state.ColdUpLocked():
		return awaitsSync // memory has the only durable record of a name
	case b.HasLowerCopy(), e.state.ColdUpLocked() && !residency.WorthWritingLocked(e.state, b):
		return leaves
	case e.state.ColdUpLocked():
		return awaitsCleaning
	case e.state.Cold != nil && b.Leased():
		return staysLeased
	}
	return leaves
}

// onlyCopyLocked reports whether b would be lost with its place in m.
func (e *Evictor) onlyCopyLocked(b *residency.Block, m *residency.Level) bool {
	for t := range e.state.Mem {
		if t != m.Index && b.In(t) {
			return false
		}
	}
	return !b.HasLowerCopy()
}

// evictLocked takes a victim out of m. With its last copy go its names.
func (e *Evictor) evictLocked(b *residency.Block, m *residency.Level) {
	e.state.Mu.AssertHeld()
	m.Stats.Evicted++
	if m == e.state.Last() {
		e.state.Mu.Writes.Batch.Clean--
	}
	e.state.DropLocked(b, m, true)
	if !b.Cold && !b.InAny() {
		switch {
		case e.state.Cold == nil || b.From != nil:
		case residency.WorthWritingLocked(e.state, b):
			e.state.Count.Stats.Lost++
		default:
			e.state.Count.Stats.Unwritten++
		}
		e.state.Count.LostLocked(losslog.Evicted, m, b.Names()...)
		e.state.VanishLocked(b)
	}
}

// Demote copies a victim of m to the next memory tier, so that the next look
// finds it there and evicts it.
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
	defer v.Release()
	if err := e.copyTo(ctx, v, next, most); errors.Is(err, tiers.ErrCorrupt) {
		return nil // it is withdrawn, and has made room
	} else if err != nil {
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
