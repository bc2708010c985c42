package netio

import (
	"cmp"
	"errors"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/cpus"
)

// Between two commands the goroutine of a connection may delegate to the poller, which
// then answers commands that take no wait. One thread takes what came of many connections
// with one look, receives, answers and sends; a thread of each connection would be switched
// to and from for each command. Of EXISTS over TCP on two cores a rank answered 0.68 of what
// redis-server does with 8 connections, and 0.50 with 32; this way 1.08 of it.

// Delegate answers commands that take no wait of any kind. The poller calls it while the
// connection's goroutine delegates, in Read: what belongs to the goroutine is the delegate's
// then. It calls nothing of the connection that waits, ends a wait, or closes.
type Delegate interface {
	// Answer answers what has come of a client between two commands. False: nothing was
	// answered, and Read returns p.
	Answer(p []byte) bool

	// Send sends what was answered, by Backlog. It may also be called from Read, and with
	// nothing to send. An error is Read's.
	Send() error
}

// answerRoom is how much of a connection's commands is looked at: a small value with the
// rest of its command.
const answerRoom = 20 << 10

// A goroutine delegates after leastRun commands in a row that its Delegate would have taken.
// Where the poller answers fewer than worthRun then, twice as many have to come before the
// next time, mostRun at most: to wake the goroutine costs some 40 µs, as much as the poller
// saves with 8 answers to one of 8 connections. Of a client that asks EXISTS 8 times and
// GETs 8 times it takes a quarter of the rank's time.
const (
	leastRun = 2
	worthRun = 16
	mostRun  = 1024
)

// briefRun is the run of commands that a Delegate takes in which a connection is.
type briefRun struct {
	failed error // of Delegate.Send

	served int  // by the goroutine
	polled int  // by the poller
	after  int  // the goroutine delegates after so many; 0: leastRun
	goesOn bool // it delegates
}

// Served is called for each command that the connection's goroutine has answered; brief is
// whether its Delegate would have done so too, had it come from the poller. After some that are,
// the goroutine delegates in Read instead of waiting for the next one with a thread.
func (c *Conn) Served(brief bool) { c.run.goesOn = c.run.add(brief) }

// add counts a command of the goroutine's, and reports whether it is to delegate.
func (r *briefRun) add(brief bool) bool {
	after := max(r.after, leastRun)
	if brief {
		r.served++
		return r.served >= after
	}
	switch {
	case r.polled >= worthRun:
		r.after = leastRun
	case r.served >= after:
		r.after = min(2*after, mostRun)
	}
	r.served, r.polled = 0, 0
	return false
}

// delegation is whether a goroutine has delegated. The mutex is held by the poller while it
// answers, and nothing of the poller is called then: its mu comes before this one.
type delegation struct {
	sync.Mutex
	conn *Conn // nil while its goroutine does not delegate
}

func (d *delegation) set(c *Conn) {
	d.Lock()
	defer d.Unlock()
	d.conn = c
}

// delegate has the poller answer for c until there is something for its goroutine. What was
// received and not answered is in c.pushback then.
func (p *Poller) delegate(c *Conn) error {
	at, err := p.beginDelegation(c)
	if err == nil {
		<-at.woken
	}
	if at != nil {
		at.delegated.set(nil)
		err = cmp.Or(err, c.run.failed, c.Delegate.Send())
	}
	c.exchanged = 0
	return err
}

// beginDelegation returns where c waits, unless the poller is closed; with an error the
// delegation is to be ended at once.
func (p *Poller) beginDelegation(c *Conn) (*waiter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, errPollerClosed
	}
	at := p.waiterLocked(c)
	at.gone = nil
	select {
	case <-at.woken: // by what is over
	default:
	}
	at.delegated.set(c)
	if at.level {
		return at, nil
	}
	return at, p.controlLocked(at, c.fd, readEvents)
}

// answerLocked answers for a connection whose goroutine may have delegated, and which has an
// event; false: the goroutine is to be woken, and the kernel reports no more until it
// delegates again. The mutex is free meanwhile.
func (p *Poller) answerLocked(at *waiter, e unix.EpollEvent) bool {
	p.mu.Unlock()
	answered := p.answer(&at.delegated, e.Events)
	p.mu.Lock()
	if !answered && p.mu.waiters[int(e.Fd)] == at {
		p.restLocked(at, e)
	}
	return answered
}

// answer is answerLocked without the mutex.
func (p *Poller) answer(d *delegation, events uint32) bool {
	d.Lock()
	defer d.Unlock()
	c := d.conn
	if c == nil || events != unix.EPOLLIN || p.quiesce.Load() != nil || len(c.pushback) > 0 {
		return false
	}
	n, err := c.receive(p.room[:])
	if err != nil {
		return errors.Is(err, ErrStalled) // after another one comes the end
	}
	if c.Delegate.Answer(p.room[:n]) {
		c.run.polled++
		return true
	}
	c.pushback = append(c.pushback, p.room[:n]...)
	return false
}

// sendLocked sends for a connection what answerLocked answered, and wakes its goroutine if that
// does not go out as a whole. The mutex is free meanwhile.
func (p *Poller) sendLocked(at *waiter, e unix.EpollEvent) {
	p.mu.Unlock()
	sent := at.delegated.send()
	p.mu.Lock()
	if !sent && p.mu.waiters[int(e.Fd)] == at {
		p.restLocked(at, e)
		at.wakeLocked(e.Events)
	}
}

// send sends what was answered, unless the goroutine does so.
func (d *delegation) send() (all bool) {
	d.Lock()
	defer d.Unlock()
	c := d.conn
	if c == nil {
		return true
	}
	c.run.failed = c.Delegate.Send()
	return c.run.failed == nil && len(c.backlog) == 0
}

// restLocked has the kernel report no more of a connection until it delegates again.
func (p *Poller) restLocked(at *waiter, e unix.EpollEvent) {
	if at.level {
		_ = p.controlLocked(at, int(e.Fd), unix.EPOLLONESHOT) // or it would be reported again and again
	}
}

// events waits for events. After an answer it watches for the next command, unless other
// threads want the core: it does not sleep then, and to wait in the kernel costs little.
func (p *Poller) events(events []unix.EpollEvent, answered bool) (n int, err error) {
	ends := func() bool {
		if n = p.within(events, 0); n > 0 {
			return true
		}
		if !yielded() {
			return false
		}
		n = p.within(events, 0) // the client may be who had the core
		return true
	}
	if answered && p.spin.watch(&p.credit, 0, ends) == watchedData && n > 0 {
		return n, nil
	}
	began := time.Now()
	if answered && cpus.TryKeepPlace() {
		n = p.within(events, briefSleep)
		cpus.LeavePlace()
	}
	if n == 0 {
		n, err = p.sleep(events)
	}
	if n > 0 && answered {
		p.spin.slept(&p.credit, time.Since(began))
	}
	return n, err
}

// sleep waits for events in the kernel: for shortSleep each time, until nothing came for a
// while. Go's monitor takes the place of who sleeps for 10 ms, and looks every 20 µs for
// some milliseconds after each place that it took: where events come now and then that
// costs a rank more than all its sleeps, a tenth of its time with clients that have four
// ranks serve blocks of 4 KiB in turns.
func (p *Poller) sleep(events []unix.EpollEvent) (n int, err error) {
	limit := shortSleep
	if p.vain >= shortSleeps {
		limit = watchEvery
	}
	if n, err = unix.EpollWait(p.epoll, events, limit); n > 0 {
		p.vain = 0
		return n, err
	}
	p.vain = min(p.vain+1, shortSleeps)
	runtime.Gosched() // the monitor takes a goroutine that goes on for 10 ms for one that sleeps
	return n, err
}

// shortSleep, in milliseconds, is less than the monitor allows, and so many are the time
// in which a rank counts as busy.
const (
	shortSleep  = 5
	shortSleeps = 20
)

// briefSleep is how many milliseconds the poller keeps its place while it sleeps: see
// semaphore. Clients of brief commands send the next one sooner.
const briefSleep = 1

// within returns the events that there are within some milliseconds, unseen by Go's scheduler.
func (p *Poller) within(events []unix.EpollEvent, ms int) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}
