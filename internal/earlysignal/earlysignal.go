package earlysignal

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// Signals receives each SIGTERM, SIGINT and SIGHUP since the start of the program,
// oldest first. A SIGHUP that finds it half full is dropped: the reloads that wait
// there will read the same configuration. SIGTERM and SIGINT are dropped when it
// is full.
var Signals = make(chan os.Signal, 8)

var (
	incoming = listen()
	_        = survivePipes()
	ending   atomic.Bool
	passed   = make(chan struct{})
)

// mark is sent through incoming: when it is seen, all signals before it are in Signals.
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
		if s == syscall.SIGHUP && len(Signals) >= cap(Signals)/2 {
			continue
		}
		Enqueue(s)
	}
}

// Enqueue puts s into Signals as if it had been sent to the process, unless Signals
// is full: all but SIGHUP are to end. It does not wait. It is safe for concurrent use.
func Enqueue(s os.Signal) {
	if s != syscall.SIGHUP {
		ending.Store(true)
	}
	select {
	case Signals <- s:
	default:
	}
}

// stopped holds the actions of the signals from before Stop.
var stopped []action

// handlerWait is how long Stop waits for a handler that has just begun.
const handlerWait = 2 * time.Millisecond

// Stop restores the system's default action for the signals but SIGPIPE. When it
// returns, every signal that was caught before is in Signals and counts for Ending.
//
// The default action is set in the kernel. The handler of the Go runtime, which
// signal.Stop alone would leave in place, ends the program by sending it a second
// signal, and an exec on another thread could come between: the signal would be
// lost. Stop must not be called again before Resume.
func Stop() {
	stopped = nil
	for _, sig := range ended {
		stopped = append(stopped, setAction(sig, action{}))
	}
	time.Sleep(handlerWait)
	signal.Stop(incoming)
	incoming <- mark
	<-passed
}

// Resume listens again after Stop.
func Resume() {
	notify(incoming)
	for i, was := range stopped {
		setAction(ended[i], was)
	}
	stopped = nil
}

// Ending reports whether SIGTERM or SIGINT was received.
func Ending() bool { return ending.Load() }
