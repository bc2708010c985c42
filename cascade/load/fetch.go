package load

import (
	"context"
	"errors"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Fetch brings one block here for everyone who asked for it meanwhile. Fields but
// done are guarded by State.Mu.
type Fetch struct {
	waiters  int
	views    []*residency.View // one for each waiter, once done
	done     chan struct{}     // closed when views are there or it failed
	finished bool
	step     string // of a load, in which the block was lost, once done
	reason   string

	source
	info  block.Info     // what is there; changes with copies alone
	price eviction.Price // what may be given up for its place in memory

	deep      bool            // it is being read from the deep level
	held      *residency.View // of the block there, until its read begins: it stays there
	deepTried bool            // it was to be

	// Of the cold tier:
	wanted       residency.NameID // the name that it was asked for by; no key: others are not asked for it
	cold         error            // why it did not come from there, whoever reads it
	prefetchOnly bool             // no get waits for it: it is not read unless it stays in memory

	// From elsewhere, those of the cold tier that others have in memory included:
	keep       bool // as a copy of this rank's own
	copies     []directory.Statement
	filesFirst bool      // files are expected to have it here sooner than other ranks
	away       bool      // it is looked for in other ranks' memory
	landed     *landed   // prefetched, and not asked for yet
	prefetch   *Prefetch // the chain it was prefetched for, until it is asked for
	reserved   int64     // its part of the bytes that are prefetched
	failed     error     // why it did not come from another rank's memory, of whoever reads it
	relocated  bool      // it was looked for once more where others have it
}

// source is what a fetch brings: a block that this rank has in its deep level or its cold tier or, when
// that is nil, a name that others have.
type source struct {
	block *residency.Block
	name  residency.NameID
}

// newFetchLocked returns the fetch of a source that has none.
func (ld *Loader) newFetchLocked(from source, info block.Info) *Fetch {
	f := &Fetch{source: from, info: info, done: make(chan struct{})}
	ld.guarded.fetches[from] = f
	return f
}

// maxReads bounds the blocks on their way from other ranks' memory at once. Those
// from the cold tier and from segments have a bound of their own: what hangs there
// does not hold up the other.
const maxReads = 64

// JoinBelowLocked counts the caller among those who wait for b. If it is the
// first, the new fetch is added to fresh, and the caller must let StartLocked have
// it. n is the name of b that others are asked for where that pays; nil: they are not.
// most is what a new fetch may give up for its place in memory. nil when there
// is nothing to fetch. The caller holds the mutex and must then await the result.
func (ld *Loader) JoinBelowLocked(b *residency.Block, n *names.Name, most eviction.Price, fresh *[]*Fetch) *Fetch {
	ld.state.Mu.AssertHeld()
	deep := inDeep(ld.state, b)
	if !b.Cold && !deep || ld.state.Mu.Closed {
		return nil
	}
	from := source{block: b}
	f := ld.guarded.fetches[from]
	if f == nil {
		f = ld.newFetchLocked(from, b.Info)
		f.price, b.Loading = most, true
		if n != nil && !deep {
			f.wanted = residency.NameID{NS: n.Namespace(), Key: n.Key()}
		}
		b.Busy++
		ld.state.Cold.SyncHoldLocked(b)
		*fresh = append(*fresh, f)
	}
	f.waiters++
	f.prefetchOnly = false
	return f
}

// Price is what f may give up for its block's place in memory.
func (f *Fetch) Price() eviction.Price { return f.price }

// Await returns the caller's view of a joined fetch, or nil: a miss. ctx has an
// end.
func (ld *Loader) Await(ctx context.Context, f *Fetch) *residency.View {
	f.wait(ctx)
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	return ld.viewLocked(ctx, f)
}

// wait waits until f has ended, or ctx.
func (f *Fetch) wait(ctx context.Context) {
	select {
	case <-f.done:
	case <-ctx.Done():
	}
}

// viewLocked takes the view of one who waited for f, or ends its waiting, which ctx did.
func (ld *Loader) viewLocked(ctx context.Context, f *Fetch) *residency.View {
	if !f.finished {
		f.waiters-- // the fetch goes on for others, and for the next request
		loseLocked(ld, f, ld.stepOf(f, nil), residency.ReasonOf(ctx.Err()))
		return nil
	}
	if len(f.views) == 0 {
		loseLocked(ld, f, f.step, f.reason)
		return nil
	}
	v := f.views[len(f.views)-1]
	f.views = f.views[:len(f.views)-1]
	return v
}

// loseLocked counts and remembers that one who waited for f has to do without its block. Who
// has given up loses nothing.
func loseLocked(ld *Loader, f *Fetch, step, reason string) {
	if f.prefetchOnly && reason == residency.ReasonOf(errNotKept) {
		return
	}
	if f.block == nil && f.finished && residency.VisibleLocked(ld.state, f.name.NS, f.name.Key) != nil {
		return // it is here by now: see getMoved
	}
	if f.finished || reason != "cancelled" {
		ld.state.Count.Losses.Add(step, reason, 1)
	}
	var level *residency.Level
	switch {
	case f.deep:
		level = ld.state.Deep()
	case step == residency.StepSegment:
		level = ld.state.Cold
	}
	unreadLocked(ld, reason, level, f.source)
}

// unreadNames bounds the names that are remembered of a block that could not be read.
const unreadNames = 16

// unreadLocked remembers of what could not be read, in a level, why.
func unreadLocked(ld *Loader, reason string, level *residency.Level, of source) {
	if of.block == nil {
		ld.state.Count.UnreadLocked(reason, level, of.name)
		return
	}
	for _, n := range of.block.Names()[:min(len(of.block.Names()), unreadNames)] {
		ld.state.Count.UnreadLocked(reason, level, residency.NameID{NS: n.Namespace(), Key: n.Key()})
	}
}

// ended is a fetch that ends: its block is in a, or err is why not.
type ended struct {
	f   *Fetch
	a   *readBuffer // nil: there was no room
	err error
}

// end ends fetches.
func (ld *Loader) end(all ...ended) {
	for i := range all {
		e := &all[i]
		if e.err == nil && !ld.identified(e) {
			e.err = ld.misread(e.f.copies)
		}
		if e.err != nil && e.a != nil {
			residency.AfterIO(e.err, e.a.abort)
		}
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	for _, e := range all {
		ld.endLocked(e)
	}
	ld.state.WakeWaitersLocked()
}

// identified reports whether what was read by its id has it: who asks by content knows of
// no name whose put stamp, size and checksum would say what to expect.
func (ld *Loader) identified(e *ended) bool {
	return e.f.name.NS != directory.Contents || block.Sum(ld.state.IDBits, e.a.bytes) == e.f.info.ID
}

func (ld *Loader) endLocked(e ended) {
	f, err := e.f, e.err
	f.finished = true
	f.step, f.reason = ld.stepOf(f, e.a), residency.ReasonOf(err)
	if err == nil {
		if err = ld.publishLocked(f, e.a); err != nil && f.block == nil {
			ld.state.NoteLocked(ld.state.Host(), err)
		}
		f.step, f.reason = residency.StepPin, residency.ReasonOf(err)
	}
	switch {
	case f.block != nil:
		ld.endColdLocked(f, err)
	case f.landed == nil:
		ld.guarded.prefetchBytes -= f.reserved
		if ld.guarded.fetches[f.source] == f {
			delete(ld.guarded.fetches, f.source)
		}
	}
	close(f.done)
}

// stepOf returns the step of a load that a fetch is at, whose block is read to a, nil
// for nowhere yet.
func (ld *Loader) stepOf(f *Fetch, a *readBuffer) string {
	switch {
	case a != nil && a.from == ld.state.Remote || a == nil && f.away:
		return residency.StepRemote
	case f.deep:
		return residency.StepPin
	}
	return residency.StepSegment
}

func (ld *Loader) endColdLocked(f *Fetch, err error) {
	switch {
	case f.cold != nil:
		ld.coldFailedLocked(f.block, f.cold)
	case err != nil && !f.away && !f.deep:
		ld.coldFailedLocked(f.block, err)
	}
	delete(ld.guarded.fetches, f.source)
	f.block.Loading = false
	ld.state.Cold.SyncHoldLocked(f.block)
	f.block.Busy--
	ld.state.ForgetLocked(f.block)
}

// publishLocked hands a block to those who wait for it: as one of the host
// level, or in private memory. If its name has changed meanwhile, its slot serves as
// private memory.
func (ld *Loader) publishLocked(f *Fetch, a *readBuffer) error {
	lost := f.block != nil && ld.state.Mu.Blocks[f.block.Info.ID] != f.block // while it was read
	if a.slot == nil || lost || f.block == nil && !ld.staysLocked(f) {
		ld.landLocked(f, a)
		return nil
	}
	defer a.slot.Abort()
	var b *residency.Block
	var fresh bool
	var err error
	if f.block != nil {
		b = f.block
		fresh, err = ld.enterLocked(b, a.slot, b.Records())
	} else {
		b, fresh, err = ld.copyLocked(f, a.slot)
	}
	if err != nil || b == nil {
		return err
	}
	for range f.waiters {
		v, err := ld.state.PinInLocked(b, ld.state.Host(), a.from)
		if err != nil {
			return err
		}
		v.SetChecked(fresh)
		f.views = append(f.views, v)
	}
	return nil
}

// enterLocked makes b resident in the host level, with the bytes of a slot,
// and reports whether it was not.
func (ld *Loader) enterLocked(b *residency.Block, slot tiers.Slot, records []block.Name) (fresh bool, err error) {
	m := ld.state.Host()
	if b.In(m.Index) {
		return false, nil
	}
	if err := slot.Commit(b.Info, records); err != nil {
		return false, ld.state.RoomError(m, b.Info.Size, err)
	}
	ld.state.EnterLocked(b, m)
	b.Used = true
	m.Stats.Promoted++
	return true, nil
}

// coldFailedLocked accounts for a read of the cold tier that failed. A block
// that the tier has lost is forgotten.
func (ld *Loader) coldFailedLocked(b *residency.Block, err error) {
	if errors.Is(err, residency.ErrOverBudget) || errors.Is(err, errNotKept) {
		return // nothing was read
	}
	ld.state.NoteColdLocked(err)
	if !errors.Is(err, tiers.ErrCorrupt) && !errors.Is(err, tiers.ErrNotFound) {
		return
	}
	if errors.Is(err, tiers.ErrCorrupt) {
		ld.state.Count.Stats.Corrupt++
	}
	ld.state.Cold.LeaveLocked(b, false)
	if !b.InAny() {
		unreadLocked(ld, residency.ReasonOf(err), ld.state.Cold, source{block: b})
		ld.state.VanishLocked(b)
	}
}
