package earlysignal

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestStopLosesNone: what os/signal has received is in Signals when Stop returns.
func TestStopLosesNone(t *testing.T) {
	ending.Store(false)
	for range 3 { // one at a time: the kernel makes one of many that wait
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-Signals:
			if s != syscall.SIGHUP || Ending() {
				t.Fatalf("%v came; ending: %v", s, Ending())
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no SIGHUP came")
		}
	}
	for range 100 {
		ending.Store(false)
		incoming <- syscall.SIGTERM
		Stop()
		if !Ending() || len(Signals) != 1 || <-Signals != syscall.SIGTERM {
			t.Fatalf("ending: %v, %d signals", Ending(), len(Signals))
		}
		Resume()
	}
}

// TestStormOfReloads: SIGHUPs that nobody reads keep neither Stop nor a signal
// to end.
func TestStormOfReloads(t *testing.T) {
	for range 3 * cap(Signals) {
		incoming <- syscall.SIGHUP
	}
	incoming <- syscall.SIGTERM
	Stop()
	Resume()
	var last os.Signal
	waited := len(Signals)
	for len(Signals) > 0 {
		last = <-Signals
	}
	if last != syscall.SIGTERM || waited != cap(Signals)/2+1 {
		t.Errorf("of %d signals that waited the last is %v, want SIGTERM", waited, last)
	}
}

// TestNobodyReads: signals to end that nobody reads keep neither Stop nor Enqueue.
func TestNobodyReads(t *testing.T) {
	for range 3 * cap(Signals) {
		incoming <- syscall.SIGTERM
	}
	Stop()
	Resume()
	Enqueue(syscall.SIGTERM)
	if len(Signals) != cap(Signals) {
		t.Errorf("%d signals wait", len(Signals))
	}
	for len(Signals) > 0 {
		<-Signals
	}
}

// TestPipe: the end of whoever reads standard error does not end the program.
func TestPipe(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	standard, err := syscall.Dup(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Dup3(int(write.Fd()), 2, 0), read.Close(), write.Close()); err != nil {
		t.Fatal(err)
	}
	_, failed := os.Stderr.WriteString("nobody reads this\n")
	if err := errors.Join(syscall.Dup3(standard, 2, 0), syscall.Close(standard)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(failed, syscall.EPIPE) {
		t.Errorf("a write to a pipe without reader: %v, want EPIPE", failed)
	}
}

// TestStopLeavesTheSystem: after Stop the kernel itself ends a program by a
// signal, and after Resume signals come again.
func TestStopLeavesTheSystem(t *testing.T) {
	Stop()
	during := setAction(syscall.SIGTERM, action{})
	Resume()
	after := setAction(syscall.SIGTERM, action{})
	setAction(syscall.SIGTERM, after)
	if during.handler != 0 || after.handler == 0 {
		t.Errorf("handlers: %#x when stopped, want the default; %#x when resumed, want one", during.handler, after.handler)
	}
	ending.Store(false)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-Signals:
	case <-time.After(20 * time.Second):
		t.Fatal("no SIGTERM came")
	}
}

// TestEnqueueEnds: what the program orders itself is passed on to the next one as if it had been sent.
func TestEnqueueEnds(t *testing.T) {
	for len(Signals) > 0 {
		<-Signals
	}
	ending.Store(false)
	Enqueue(syscall.SIGHUP)
	if <-Signals; Ending() {
		t.Error("SIGHUP ends")
	}
	Enqueue(syscall.SIGTERM)
	if s := <-Signals; s != syscall.SIGTERM || !Ending() {
		t.Errorf("%v; ending: %v", s, Ending())
	}
}
