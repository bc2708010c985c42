package heed

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// Signals has what came since the start of the program, SIGTERM, SIGINT and
// SIGHUP, oldest first; what finds it full is lost.
var Signals = make(chan os.Signal, 8)

var (
	came   = listen()
	told   atomic.Bool
	passed = make(chan struct{})
)

// mark goes through came to learn that what was before it has been passed on.
const mark = syscall.Signal(0)

func listen() chan os.Signal {
	c := make(chan os.Signal, cap(Signals))
	notify(c)
	go passOn(c)
	return c
}

func notify(c chan os.Signal) {
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
}

func passOn(from <-chan os.Signal) {
	for s := range from {
		if s == mark {
			passed <- struct{}{}
			continue
		}
		if s != syscall.SIGHUP {
			told.Store(true)
		}
		select {
		case Signals <- s:
		default: // eight are waiting: nobody heeds them
		}
	}
}

// Stop gives the signals back to what the system does with them. When it
// returns, whatever came before is in Signals, and Told knows of it.
func Stop() {
	signal.Stop(came)
	came <- mark
	<-passed
}

// Resume listens again after Stop.
func Resume() { notify(came) }

// Told tells whether a signal to end has come.
func Told() bool { return told.Load() }
