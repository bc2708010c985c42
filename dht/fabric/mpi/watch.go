//go:build mpi

package mpi

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/dht/fabric"
)

// The watch's ways, by how long nothing has happened. Each nap is a bound on how
// long a request of another rank waits at a rank that does nothing.
var naps = []struct {
	quiet, nap time.Duration
	spins      int
}{
	{200 * time.Microsecond, 0, 10}, // a few at a time, so that a caller who wants to drive waits for little
	{3 * time.Millisecond, 20 * time.Microsecond, 4},
	{30 * time.Millisecond, 150 * time.Microsecond, 3},
	{500 * time.Millisecond, time.Millisecond, 2},
	{1 << 62, 2 * time.Millisecond, 2},
}

const (
	// leaderNap is how often the watch looks after the other ranks while
	// callers drive: those do it too, but not between their requests.
	leaderNap = 900 * time.Microsecond

	// servingSpin is how long the watch spins while bytes are on their way to a
	// reader: their end, and the next request, come soon.
	servingSpin = 3 * time.Millisecond

	// leaderRest is how soon after a caller the watch may spin again.
	leaderRest = 3 * time.Millisecond
)

// startWatch puts a goroutine on duty in place of the one before.
func (f *Fabric) startWatch() {
	mine := f.duty.shift.Add(1)
	f.duty.watchers.Go(func() { f.keepWatch(mine) })
}

// superviseWatch relieves the watch when it is stuck in a Handler.Hold.
func (f *Fabric) superviseWatch() {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	seen := uint64(0)
	for !f.duty.over.Load() {
		<-tick.C
		now := f.duty.holding.Load()
		if now%2 == 1 && now == seen && f.duty.holding.CompareAndSwap(now, now+1) {
			f.startWatch()
		}
		seen = now
	}
}

// keepWatch drives whenever no caller does.
func (f *Fabric) keepWatch(mine uint64) {
	runtime.LockOSThread() // never unlocked: the thread ends with its exact timer
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0)
	enough := func() bool { return f.posts.waiting.Load() > 0 || f.duty.over.Load() }
	news := time.Now()
	var led time.Time // when a caller was seen to drive
	for !f.duty.over.Load() && f.duty.shift.Load() == mine {
		if f.duty.wanting.Load() > 0 || !f.drive.TryLock() {
			f.watch.rest(leaderNap)
			led = time.Now()
			continue
		}
		now := time.Now()
		way := restAfter(now.Sub(news))
		if f.driven.serving > 0 && now.Sub(news) < servingSpin {
			way = naps[0]
		}
		if now.Sub(led) < leaderRest && way.nap <= leaderNap {
			way.spins, way.nap = 2, leaderNap
		}
		worked, ok := f.watchPass(way.spins, now.Sub(news) > eager, now)
		switch {
		case !ok:
			return
		case worked:
			news = time.Now()
		case way.nap == leaderNap:
			f.watch.rest(way.nap)
		case way.nap > 0:
			f.watch.nap(way.nap, enough)
		}
	}
}

// watchPass is a pass of the watch, which is the driver, until its end. ok is
// false when the watch was relieved meanwhile.
func (f *Fabric) watchPass(spins int, yield bool, now time.Time) (worked, ok bool) {
	d := &f.driven
	f.duty.watching.Store(true)
	d.watch = true
	worked = f.pass(spins, yield)
	if now.After(d.sweepAt) {
		f.sweep(now)
		d.sweepAt = now.Add(sweepEvery)
	}
	d.watch = false
	f.duty.watching.Store(false)
	f.drive.Unlock()
	return worked, f.serveOnWatch()
}

// restAfter is how the watch behaves when nothing has happened for so long.
func restAfter(quiet time.Duration) (way struct {
	quiet, nap time.Duration
	spins      int
}) {
	for _, way = range naps {
		if quiet < way.quiet {
			break
		}
	}
	return way
}

// serveOnWatch serves the reads that were asked for, without other goroutines.
// It is false when the watch was relieved meanwhile: the next one goes on with
// those that are left.
func (f *Fabric) serveOnWatch() bool {
	for f.waiting.Load() > 0 {
		f.askedMu.Lock()
		if len(f.asked) == 0 {
			f.askedMu.Unlock()
			return true
		}
		a := f.asked[0]
		f.asked = f.asked[1:]
		f.askedMu.Unlock()
		f.waiting.Add(-1)
		mark := f.duty.holding.Add(1)
		s := f.hold(a)
		if !f.duty.holding.CompareAndSwap(mark, mark+1) {
			f.submit(s)
			return false
		}
		f.submitQuietly(s)
	}
	return true
}

// ask leaves a read to the watch.
func (f *Fabric) ask(a asked) {
	f.askedMu.Lock()
	f.asked = append(f.asked, a)
	f.askedMu.Unlock()
	f.waiting.Add(1)
}

// submitQuietly is submit for the watch, which drives next anyway.
func (f *Fabric) submitQuietly(p poster) {
	if f.drive.TryLock() {
		p.post()
		f.drive.Unlock()
		return
	}
	f.push(p)
}

// sweep lets go of bytes whose reader has given up before they were all sent:
// it may be dead, and MPI would never say so. What MPI still reads there goes
// to nobody.
func (f *Fabric) sweep(now time.Time) {
	for _, by := range f.driven.slots {
		if s, ok := by.(*served); ok && now.After(s.until) {
			s.release()
		}
	}
}

// gracePeriod is how much longer than the reader's deadline the bytes are held:
// a reader refuses what comes after its deadline.
const gracePeriod = time.Second

// asked is a read that another rank asked for.
type asked struct {
	from    fabric.Rank
	header  header
	src     fabric.Source
	bad     bool // src makes no sense
	arrived time.Time
}
