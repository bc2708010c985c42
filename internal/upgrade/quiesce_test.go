package upgrade

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admission"
	"cascadekv/internal/netio"
)

// TestQuiesce: nothing is called before all rest, who does not is named, and jobs go
// on whatever came of it.
func TestQuiesce(t *testing.T) {
	p, err := netio.NewPoller(netio.Config{Stalled: &admission.Allowance{}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	c, err := p.AdoptConn(fds[0], true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ending, resumed, called := false, 0, 0
	f := Front{
		Poller: p, Conns: func() []Conn { return []Conn{{7, c}} }, Ending: func() bool { return ending }, HTTPBusy: func() bool { return false },
		RestJobs: func() bool { return true }, ResumeJobs: func() { resumed++ },
	}
	then := func(time.Time) error { called++; return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Quiesce(ctx, then); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "7 (process ") || called != 0 {
		t.Errorf("with a busy connection: %v, called %d times", err, called)
	}
	rested := make(chan struct{})
	go func() {
		defer close(rested)
		for p.Quiescing() == nil {
			time.Sleep(time.Millisecond)
		}
		p.Quiescing().Rest(c)
	}()
	if err := f.Quiesce(t.Context(), then); err != nil || called != 1 {
		t.Errorf("with one that rests: %v, called %d times", err, called)
	}
	<-rested
	ending = true
	if err := f.Quiesce(t.Context(), then); !errors.Is(err, errEnding) || called != 1 {
		t.Errorf("at the end: %v, called %d times", err, called)
	}
	if resumed != 3 {
		t.Errorf("jobs went on %d times of 3", resumed)
	}
}
