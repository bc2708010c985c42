//go:build mpi

package mpi

import (
	"runtime"
	"time"

	"cascadekv/dht/fabric"
)

// The watch's naps, by how long nothing has happened. Each is a bound on how
// long a request of another rank waits at a rank that does nothing.
var naps = []struct{ quiet, nap time.Duration }{
	{200 * time.Microsecond, 0}, // spin
	{3 * time.Millisecond, 20 * time.Microsecond},
	{30 * time.Millisecond, 150 * time.Microsecond},
	{1 << 62, time.Millisecond},
}

// leaderNap is how often the watch looks whether there is still a leader.
const leaderNap = 200 * time.Microsecond

// startWatch puts a goroutine on duty in place of the one before.
func (f *Fabric) startWatch() {
	mine := f.shift.Add(1)
	f.watchers.Go(func() { f.keepWatch(mine) })
}

// superviseWatch relieves the watch when it is stuck in a Handler.Hold.
func (f *Fabric) superviseWatch() {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	seen := uint64(0)
	for !f.over.Load() {
		<-tick.C
		now := f.holding.Load()
		if now%2 == 1 && now == seen {
			f.holding.Add(1) // the next one starts even
			f.startWatch()
		}
		seen = now
	}
}

// keepWatch drives whenever no caller does.
func (f *Fabric) keepWatch(mine uint64) {
	runtime.LockOSThread() // sleeps and tests stay on one thread, which has its own timer
	defer runtime.UnlockOSThread()
	d := &f.driven
	news := time.Now()
	enough := func() bool { return f.queued.Load() > 0 || f.over.Load() }
	var asked []asked
	for !f.over.Load() && f.shift.Load() == mine {
		if f.wanting.Load() > 0 || !f.drive.TryLock() {
			f.watch.nap(leaderNap, f.over.Load)
			news = time.Now()
			continue
		}
		f.watching.Store(true)
		quiet := time.Since(news)
		d.watch, d.woken = true, 0
		worked := f.pass(passSpins, quiet > eager)
		if now := time.Now(); now.After(d.sweepAt) {
			f.sweep(now)
			d.sweepAt = now.Add(sweepEvery)
		}
		asked, d.asked, d.watch = d.asked, asked[:0], false
		f.watching.Store(false)
		f.drive.Unlock()
		for _, a := range asked {
			if !f.serveOnWatch(a, mine) {
				return
			}
		}
		if worked {
			news = time.Now()
			continue
		}
		f.rest(time.Since(news), enough)
	}
}

// rest naps as befits a rank where nothing has happened for so long.
func (f *Fabric) rest(quiet time.Duration, enough func() bool) {
	for _, n := range naps {
		if quiet < n.quiet {
			if n.nap > 0 {
				f.watch.nap(n.nap, enough)
			}
			return
		}
	}
}

// serveOnWatch serves a read without another goroutine. It is false when the
// watch was relieved meanwhile.
func (f *Fabric) serveOnWatch(a asked, mine uint64) bool {
	f.holding.Add(1)
	s := f.hold(a)
	if f.shift.Load() != mine {
		f.submit(s)
		return false
	}
	f.holding.Add(1)
	f.submitQuietly(s)
	return true
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
