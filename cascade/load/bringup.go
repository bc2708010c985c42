package load

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/internal/fault"
	"cascadekv/internal/stack"
	"cascadekv/tiers"
)

// What a request finds in the cold tier only, or in segments that others left, or in
// the deep level, is brought up in parts, each read with one call of the tier, which decides how
// to read what it is given. The memory of a part is reserved before it is read, so
// parts are what is bounded: those of all requests by fetchPlaces, those of one by
// requestPlaces, so that a long chain leaves room for others. They are taken in
// turn, by all requests that want some.
const (
	placeBytes    = 4 << 20 // what one place is good for
	fetchPlaces   = 64
	requestPlaces = 16

	// PartBytes and PartBlocks bound a part of several blocks: enough for the
	// tier to keep many reads under way, little enough that the first blocks of
	// a chain are being read while room is made for the next.
	PartBytes  = 16 << 20
	PartBlocks = 256

	// partSlow is how long a part keeps its places: one that takes longer
	// waits for a server that hangs, or for room, and others need not.
	partSlow = time.Second

	// budgetWait is the longest that a part waits for the budget of reads. What would
	// take longer is a miss: it is sooner computed, and a queue that is longer is none
	// that a budget ends.
	budgetWait = 50 * time.Millisecond
)

// semaphore bounds what is under way at once. Places are given first come, first
// served.
type semaphore struct {
	gate  chan struct{} // who holds it takes places
	taken chan struct{}
}

func newSemaphore(n int) *semaphore {
	return &semaphore{make(chan struct{}, 1), make(chan struct{}, n)}
}

// take takes n places, or all if there are fewer. What it returns gives them
// back. The error is that of ctx.
func (p *semaphore) take(ctx context.Context, n int) (leave func(), err error) {
	if err := residency.TakeSlot(ctx, p.gate); err != nil {
		return nil, err
	}
	defer func() { <-p.gate }()
	n = min(n, cap(p.taken))
	for i := range n {
		if err := residency.TakeSlot(ctx, p.taken); err != nil {
			p.give(i)
			return nil, err
		}
	}
	return func() { p.give(n) }, nil
}

func (p *semaphore) give(n int) {
	for range n {
		<-p.taken
	}
}

// StartLocked starts new fetches, all of one request. The caller holds the mutex, and has
// not released it since it made them unless it is one of state.Workers.
func (ld *Loader) StartLocked(fetches []*Fetch) {
	if paysToAskLocked(ld, fetches) {
		ld.state.Workers.Go(func() { ld.askAndStart(fetches) })
		return
	}
	if part := ld.startLocked(fetches); part != nil {
		go func() {
			defer ld.state.Workers.Done()
			ld.runElsewhere(part)
		}()
	}
}

// startLocked is StartLocked but for a part that other ranks have, which the caller
// passes to runHere; nil: there is none.
func (ld *Loader) startLocked(fetches []*Fetch) (mine []*Fetch) {
	ld.state.Mu.AssertHeld()
	fetches = startDeepLocked(ld, fetches)
	chooseLocked(ld, fetches)
	var below, elsewhere []*Fetch
	for _, f := range fetches {
		if f.filesFirst {
			below = append(below, f)
		} else {
			elsewhere = append(elsewhere, f)
		}
	}
	if len(below) > 0 {
		ld.state.Workers.Add(1)
		go ld.runFetches(ld.state.Cold, below)
	}
	for i, part := range remoteParts(elsewhere) {
		if i == 0 {
			ld.state.Workers.Add(1)
			mine = part
			continue
		}
		ld.state.Workers.Go(func() { ld.runElsewhere(part) })
	}
	return mine
}

// countdown returns a function that calls fn when it is called for the n-th time.
func countdown(n int, fn func()) func() {
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			fn()
		}
	}
}

// runFetches brings blocks up from a level. It outlives the request that wanted them, up to a deadline of
// its own. It is one of state.Workers until all have ended: Close does not wait for a read that
// hangs, to which its memory is left.
func (ld *Loader) runFetches(from *residency.Level, fetches []*Fetch) {
	stack.Grow()
	defer fault.Guard()()
	over := countdown(len(fetches), ld.state.Workers.Done)
	ctx, cancel := untilRead(ld, from)
	defer cancel()
	room := ld.roomTime(ctx, fetches[0].price)
	defer room.end()
	var own *semaphore // nil while there is one part
	all := ld.fetching
	if from != ld.state.Cold {
		all = ld.lifting
	}
	var parts sync.WaitGroup
	var err error
	for len(fetches) > 0 {
		part, n := firstPart(fetches)
		if err = ld.inBudget(ctx, from, part); err != nil {
			break // nor what is below it in the chain: that is worth nothing without it
		}
		if own == nil && len(part) < len(fetches) {
			own = newSemaphore(requestPlaces)
		}
		var leave func()
		if leave, err = turn(ctx, n, own, all); err != nil {
			break
		}
		if fetches = fetches[len(part):]; len(fetches) == 0 { // the last, or only one: no goroutine of its own
			ld.readUp(ctx, room, from, part, leave, over)
			break
		}
		parts.Go(func() {
			defer fault.Guard()()
			ld.readUp(ctx, room, from, part, leave, over)
		})
	}
	for _, f := range fetches {
		if f.deep {
			notDeep(ld, ended{f, nil, err})
		} else {
			ld.end(ended{f, nil, err})
		}
		over()
	}
	parts.Wait()
}

// inBudget waits until there is a budget for reading a part from files, and counts that. What empties
// a file that cannot be merged, which is done only where the file system is full, waits for
// nothing, and what comes after owes it. Errors: ErrOverBudget, those of ctx.
func (ld *Loader) inBudget(ctx context.Context, cold *residency.Level, part []*Fetch) error {
	if cold.Files == nil {
		return nil
	}
	bytes := int64(0)
	for _, f := range part {
		if f.block != nil {
			bytes += cold.Files.StoredSize(f.info)
		} else if at := others.SegmentOf(ld.state, f.copies); at != nil {
			bytes += at.Stored
		}
	}
	if part[0].price != eviction.AnyBlock {
		return cold.Reads.Within(ctx, bytes, budgetWait)
	}
	cold.Reads.Owe(bytes)
	return nil
}

// firstPart cuts off what is read together, and returns how many places it needs.
func firstPart(fetches []*Fetch) (part []*Fetch, n int) {
	bytes := fetches[0].info.Size
	k := 1
	for ; k < min(len(fetches), PartBlocks) && bytes+fetches[k].info.Size <= PartBytes; k++ {
		bytes += fetches[k].info.Size
	}
	return fetches[:k], int(max(1, (bytes+placeBytes-1)/placeBytes))
}

// turn takes n places among a request's own, if it has a bound, and among all. They are given
// back by leave, which may be called any number of times, or after partSlow.
func turn(ctx context.Context, n int, own, all *semaphore) (leave func(), err error) {
	leaveOwn := func() {}
	if own != nil {
		if leaveOwn, err = own.take(ctx, n); err != nil {
			return nil, err
		}
	}
	leaveAll, err := all.take(ctx, n)
	if err != nil {
		leaveOwn()
		return nil, err
	}
	give := sync.OnceFunc(func() {
		leaveAll()
		leaveOwn()
	})
	slow := time.AfterFunc(partSlow, give)
	return func() {
		slow.Stop()
		give()
	}, nil
}

// readUp reads the blocks of a part together; each is published when it is
// there, and over called, and leave when all are. room ends when none of them waits for room
// any more.
func (ld *Loader) readUp(ctx context.Context, room *roomTime, from *residency.Level, part []*Fetch, leave, over func()) {
	var failed atomic.Bool
	loaded := func(bool) {}
	last := countdown(len(part), func() {
		leave()
		loaded(!failed.Load())
	})
	one := func() {
		last()
		over()
	}
	reads, bytes := make([]tiers.Read, 0, len(part)), int64(0)
	for _, f := range part {
		r, err := ld.readOf(ctx, room, f)
		if err == errNotKept {
			one()
			continue
		}
		if err != nil {
			if f.deep {
				notDeep(ld, ended{f, nil, err})
			} else {
				notBelow(ctx, ld, ended{f, nil, err})
			}
			one()
			continue
		}
		done := r.Done
		r.Done = func(err error) {
			defer one()
			if err != nil {
				failed.Store(true)
			}
			done(err)
		}
		reads, bytes = append(reads, r), bytes+f.info.Size
	}
	if len(reads) == 0 {
		return
	}
	loaded = from.BeganLoad(bytes) // without the wait for room
	if from.Files != nil {
		from.Files.ReadBatch(ctx, reads)
	} else {
		tiers.Plain{Tier: from.Memory}.ReadBatch(ctx, reads)
	}
}

// readOf finds room for a block, in the host level if that admits it or else of its own,
// with how it is read and what is done then. ctx bounds that too. errNotKept: the fetch has ended.
func (ld *Loader) readOf(ctx context.Context, room *roomTime, f *Fetch) (tiers.Read, error) {
	if f.block == nil {
		return ld.readOfSegment(ctx, room, f)
	}
	if f.deep {
		return readOfDeep(ld, room, f)
	}
	pin, err := ld.state.Cold.Files.Pin(f.info.ID)
	if err != nil {
		return tiers.Read{}, err
	}
	a, err := ld.allocate(room, f.info.Size, ld.admitted(f), f.price)
	if err != nil {
		pin.Release()
		return tiers.Read{}, err
	}
	if a.slot == nil && endPrefetch(ld, f) {
		a.abort()
		pin.Release()
		return tiers.Read{}, errNotKept
	}
	a.from = ld.state.Cold
	return tiers.Read{Pin: pin, Dst: a.bytes, Over: a.slot != nil, Done: func(err error) {
		pin.Release()
		if isOver(ctx, err) {
			ld.end(ended{f, a, err})
			return
		}
		notBelow(ctx, ld, ended{f, a, err})
	}}, nil
}

// admitted reports whether a block may enter memory: one that must leave the cold
// tier always may.
func (ld *Loader) admitted(f *Fetch) bool {
	if f.block == nil {
		return f.keep
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	return f.price == eviction.AnyBlock || ld.state.Host().AdmitsLocked(f.block)
}
