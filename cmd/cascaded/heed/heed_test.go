package heed

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestStopKnowsAll: what os/signal has taken in is in Signals when Stop returns.
func TestStopKnowsAll(t *testing.T) {
	told.Store(false)
	for range 3 { // one at a time: the kernel makes one of many that wait
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-Signals:
			if s != syscall.SIGHUP || Told() {
				t.Fatalf("%v came; to be told to end: %v", s, Told())
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no SIGHUP came")
		}
	}
	for range 100 {
		told.Store(false)
		came <- syscall.SIGTERM
		Stop()
		if !Told() || len(Signals) != 1 || <-Signals != syscall.SIGTERM {
			t.Fatalf("told: %v, %d signals", Told(), len(Signals))
		}
		Resume()
	}
}

// TestNobodyHeeds: signals that nobody takes keep neither Stop nor the next ones.
func TestNobodyHeeds(t *testing.T) {
	for range 3 * cap(Signals) {
		came <- syscall.SIGHUP
	}
	Stop()
	Resume()
	if len(Signals) != cap(Signals) {
		t.Errorf("%d signals wait", len(Signals))
	}
	for len(Signals) > 0 {
		<-Signals
	}
}
