package server

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admin"
	"cascadekv/internal/handover"
)

var errStays = errors.New("the test goes on with the first server")

// dup makes a state of what another process would have: descriptors of its own.
func dup(t *testing.T, st *handover.State) *handover.State {
	t.Helper()
	st, err := handover.Decode(handover.Encode(st))
	if err != nil {
		t.Fatal(err)
	}
	again := func(fd *int32) {
		if *fd < 0 {
			return
		}
		n, err := unix.FcntlInt(uintptr(*fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		*fd = int32(n)
	}
	st.Listeners = nil // the second server has none
	for i := range st.Conns {
		x := &st.Conns[i]
		again(&x.FD)
		for k := range x.Descriptors {
			again(&x.Descriptors[k])
		}
		again(&x.Holds)
		for k := range x.Regions {
			again(&x.Regions[k].FD)
			again(&x.Regions[k].Notify)
		}
	}
	return st
}

// TestHandOverOfJobs has a second server go on with a connection whose jobs are
// partly done, while the first one rests.
func TestHandOverOfJobs(t *testing.T) {
	r := newRig(t, 32<<20)
	e := r.engine(8 * 4096)
	n := e.attach()
	copy(e.mem, bytes.Repeat([]byte("0123456789abcdef"), 4*256))
	e.queue(7, "CASCADE.STORE", n, "ns", at(0, 4096), "KEYS", "a")
	for r.srv.jobs.Unfinished() > 0 {
		time.Sleep(time.Millisecond)
	}
	for !r.srv.jobs.Rest() { // what is queued from here on waits
		time.Sleep(time.Millisecond)
	}
	e.queue(8, "CASCADE.STORE", n, "ns", at(4096, 100, 8192, 50, 4196, 100, 8242, 50), "PARENT", "a", "CHAIN", "PX", "60000", "KEYS", "b", "c")
	e.queue(9, "CASCADE.LOAD", n, "ns", at(4*4096, 4096, 5*4096, 4096), "KEYS", "a", "none")
	if _, err := e.Do("SELECT", "5"); err != nil {
		t.Fatal(err)
	}

	err := r.srv.HandOver(t.Context(), 0, func(st *handover.State) error {
		if len(st.Conns) != 1 || len(st.Conns[0].Jobs) != 3 || st.Conns[0].DB != 5 {
			t.Errorf("handed over: %+v", st)
			return errStays
		}
		o := r.srv.opt
		o.Socket, o.Listen, o.Admin, o.Inherited = "", "", "", dup(t, st)
		second, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- second.Serve(ctx) }()
		told := e.told(3)
		if told[7] != "1" || told[8] != "11" || told[9] != "10" {
			t.Errorf("jobs are told as %v", told)
		}
		if !bytes.Equal(e.mem[4*4096:5*4096], e.mem[:4096]) {
			t.Error("what was loaded is not what was stored")
		}
		info, there := r.store.Stat(t.Context(), "ns", "c")
		if !there || info.Parent != "b" || info.Size != 150 || info.Expires.IsZero() {
			t.Errorf("the second block: %+v, %v", info, there)
		}
		if n := second.Snapshot().Held.Regions; n != 1 {
			t.Errorf("%d regions are told, want 1", n)
		}
		if _, err := e.Do("CASCADE.REGION", "DETACH", n); err != nil {
			t.Error(err)
		}
		if got := second.Snapshot().Held; got != (admin.Held{}) {
			t.Errorf("held without a region: %+v", got)
		}
		e.Close()
		stop, end := context.WithTimeout(context.Background(), 10*time.Second)
		defer end()
		if err := second.Shutdown(stop); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		return errStays
	})
	if !errors.Is(err, errStays) {
		t.Errorf("HandOver: %v", err)
	}
	_, c := r.connect() // the first server serves again
	if pong, err := c.Do("PING"); err != nil || pong.Text() != "PONG" {
		t.Errorf("PING: %v, %v", pong, err)
	}
}

// TestWaitsArePutBack: commands that wait do not hold a halt up, and go on to wait
// behind it for what is left of their time.
func TestWaitsArePutBack(t *testing.T) {
	r := newRig(t, 32<<20)
	_, events := r.connect()
	done := r.engine(4096)
	n := done.attach()
	next, err := events.Do("CASCADE.EVENTS", "0")
	if err != nil {
		t.Fatal(err)
	}
	for !r.srv.jobs.Rest() {
		time.Sleep(time.Millisecond)
	}
	done.queue(1, "CASCADE.STORE", n, "ns", at(0, 4096), "KEYS", "k")
	events.Send("CASCADE.EVENTS", next.Elems[0].Text(), "WAIT", "5000", "MAX", "7")
	events.Send("ECHO", "behind")
	done.Send("CASCADE.DONE", "5000")
	for _, err := range []error{events.Flush(), done.Flush()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond) // for the rank to begin with them
	err = r.srv.HandOver(t.Context(), 0, func(st *handover.State) error {
		for _, c := range st.Conns {
			if len(c.Jobs) == 1 && !bytes.HasPrefix(c.Input, []byte("*2\r\n$12\r\nCASCADE.DONE\r\n")) {
				t.Errorf("DONE is put back as %q", c.Input)
			}
			if len(c.Jobs) == 0 && (!bytes.HasPrefix(c.Input, []byte("*6\r\n$14\r\nCASCADE.EVENTS\r\n")) || !bytes.HasSuffix(c.Input, []byte("behind\r\n"))) {
				t.Errorf("EVENTS is put back as %q", c.Input)
			}
		}
		return errStays
	})
	if !errors.Is(err, errStays) {
		t.Fatalf("HandOver: %v", err)
	}
	a, err := done.Receive()
	if err != nil || len(a.Elems) != 1 || a.Elems[0].Elems[0].Int != 1 {
		t.Errorf("DONE: %+v, %v", a, err)
	}
	a, err = events.Receive()
	if err != nil || len(a.Elems) != 3 || len(a.Elems[2].Elems) != 1 {
		t.Errorf("EVENTS: %+v, %v", a, err)
	}
	if a, err = events.Receive(); err != nil || a.Text() != "behind" {
		t.Errorf("ECHO: %+v, %v", a, err)
	}
}
