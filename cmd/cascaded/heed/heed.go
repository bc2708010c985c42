package heed

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// Signals has what came since the start of the program, SIGTERM, SIGINT and
// SIGHUP, oldest first. A SIGHUP that finds it half full is dropped: reloads
// that are due already read what it is about. A signal to end that finds it full
// is one of many.
var Signals = make(chan os.Signal, 8)

var (
	came   = listen()
	_      = survivePipes()
	told   atomic.Bool
	passed = make(chan struct{})
)

// mark goes through came to learn that what was before it has been passed on.
const mark = syscall.Signal(0)

func listen() chan os.Signal {
	c := make(chan os.Signal, 8*cap(Signals)) // os/signal drops what finds it full, whatever it is
	notify(c)
	go passOn(c)
	return c
}

func notify(c chan os.Signal) {
	signal.Notify(c, ended...)
}

// survivePipes has a write to standard error fail when its reader is gone,
// instead of ending the program before it has drained: Ctrl-C ends the tee of
// "cascaded 2>&1 | tee log" first. A program that is started by this one has the
// system's behaviour again.
func survivePipes() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return c
}

func passOn(from <-chan os.Signal) {
	for s := range from {
		if s == mark {
			passed <- struct{}{}
			continue
		}
		if s != syscall.SIGHUP {
			told.Store(true)
		} else if len(Signals) >= cap(Signals)/2 {
			continue
		}
		Enqueue(s)
	}
}

// Enqueue puts s into Signals as if it had come, unless Signals is full. It does
// not wait. It is safe for concurrent use.
func Enqueue(s os.Signal) {
	select {
	case Signals <- s:
	default:
	}
}

// stopped is what was done with the signals before Stop.
var stopped []action

// settle is how long Stop waits for a handler that has just begun.
const settle = 2 * time.Millisecond

// Stop gives the signals back to what the system does with them, but SIGPIPE.
// When it returns, whatever came before is in Signals, and Told knows of it.
//
// The kernel is to end this program by itself. The handler of the Go runtime,
// which stays when nobody listens, ends it by another signal that it sends, and
// an exec on another thread would end that handler before: then the signal would
// be lost. Stop must not be called again before Resume.
func Stop() {
	stopped = nil
	for _, sig := range ended {
		stopped = append(stopped, setAction(sig, action{}))
	}
	time.Sleep(settle)
	signal.Stop(came)
	came <- mark
	<-passed
}

// Resume listens again after Stop.
func Resume() {
	notify(came)
	for i, was := range stopped {
		setAction(ended[i], was)
	}
	stopped = nil
}

// Told tells whether a signal to end has come.
func Told() bool { return told.Load() }
