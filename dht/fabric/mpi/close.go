//go:build mpi

package mpi

import (
	"fmt"
	"time"

	"cascadekv/dht/fabric"
)

const (
	settleTime = 4 * time.Second // for what is under way, at Close
	cancelTime = time.Second     // for MPI to give receives up
)

// Close implements fabric.Fabric. The error says what could not be ended; the
// memory of reads that still linger then stays MPI's.
func (f *Fabric) Close() error {
	f.closed.Do(func() { f.closeErr = f.close() })
	return f.closeErr
}

func (f *Fabric) close() error {
	f.closing.Store(true)
	f.push(ending{f: f, err: fabric.ErrClosed})
	f.end()
	f.watch.wake()
	quiet := f.settle(settleTime, func() bool {
		return f.handling.Load() == 0 && f.driven.sending() == 0 && f.driven.receiving() == 0
	})
	f.over.Store(true)
	f.watch.wake()
	f.watchers.Wait()
	err := f.unsettled(quiet)
	cancelled := f.settle(cancelTime, f.cancelAll())
	f.settle(cancelTime, func() bool {
		if cancelled {
			f.driven.set.Free()
		}
		f.driven.set = nil
		return true
	})
	return err
}

// unsettled is the error of a Close that gave up waiting.
func (f *Fabric) unsettled(quiet bool) (err error) {
	if quiet {
		return nil
	}
	f.settle(cancelTime, func() bool {
		err = fmt.Errorf("fabric mpi: close: %d handler calls, %d sends or %d reads did not end in %v",
			f.handling.Load(), f.driven.sending(), f.driven.receiving(), settleTime)
		return true
	})
	return err
}

// settle drives now and then until ok, which is asked as the driver.
func (f *Fabric) settle(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Microsecond) {
		if f.drive.TryLock() {
			f.pass(1, false)
			done := ok()
			f.drive.Unlock()
			if done {
				return true
			}
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// sending counts the reads being served. Those of dead ranks do not end: their
// bytes are let go of.
func (d *driven) sending() int {
	n := 0
	for _, by := range d.slots {
		s, ok := by.(*served)
		switch {
		case ok && d.f.state(s.asked.from) == fabric.Gone:
			s.release()
		case ok:
			n++
		}
	}
	return n
}

// receiving counts the reads whose memory is MPI's and that may end.
func (d *driven) receiving() int {
	n := 0
	for _, o := range d.ops {
		if o.receiving && d.f.state(o.peer) != fabric.Gone {
			n++
		}
	}
	return n
}

// cancelAll asks MPI once to give up all receives, and returns a function that
// reports whether nothing is under way any more.
func (f *Fabric) cancelAll() func() bool {
	asked := false
	return func() bool {
		d := &f.driven
		if !asked {
			asked = true
			for slot, by := range d.slots {
				switch by := by.(type) {
				case *op:
					if by.direct {
						continue // MPI takes no copy back
					}
				case *inbox, *long:
				default:
					continue
				}
				_ = d.set.Cancel(slot) // what can not be cancelled is seen below
			}
		}
		return d.set.Active() == 0
	}
}
