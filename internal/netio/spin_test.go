package netio

import (
	"bytes"
	"cmp"
	"io"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admission"
	"cascadekv/internal/testing/testneed"
)

// connPair is a connection and the descriptor of its client.
func connPair(t *testing.T, spin *spinner) (*Conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPoller(Config{Stalled: &admission.Allowance{}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.AdoptConn(fds[0], true)
	if err != nil {
		t.Fatal(err)
	}
	c.spin = spin
	t.Cleanup(func() {
		_ = unix.Close(fds[1])
		c.Close()
		p.Close()
	})
	return c, fds[1]
}

func send(t *testing.T, fd int, p []byte) {
	t.Helper()
	if n, err := unix.Write(fd, p); err != nil || n != len(p) {
		t.Fatalf("%d of %d bytes, %v", n, len(p), err)
	}
}

func TestWatchSeesWhatComes(t *testing.T) {
	spin := &spinner{window: time.Minute}
	w, client := connPair(t, spin)
	w.spinCredit = 1
	time.AfterFunc(10*time.Millisecond, func() { _, _ = unix.Write(client, []byte("x")) })
	if got := spin.watch(&w.spinCredit, 0, w.comes); got != watchedData || w.spinCredit != fullCredit {
		t.Fatalf("saw %v, patience %d; want %v and %d", got, w.spinCredit, watchedData, fullCredit)
	}
}

// What does not pay is not done again, until a wait shows that it would pay.
func TestWatchingInVainEnds(t *testing.T) {
	spin := &spinner{window: time.Microsecond}
	w, client := connPair(t, spin)
	for i := range fullCredit {
		if got := spin.watch(&w.spinCredit, 0, w.comes); got != watchedInVain {
			t.Fatalf("watch %d saw %v", i, got)
		}
	}
	if got := spin.watch(&w.spinCredit, 0, w.comes); got != notWatched {
		t.Fatalf("a watch after %d in vain: %v", fullCredit, got)
	}
	spin.slept(&w.spinCredit, time.Second)
	if got := spin.watch(&w.spinCredit, 0, w.comes); got != notWatched {
		t.Fatalf("a watch after a long wait: %v", got)
	}
	spin.slept(&w.spinCredit, 2*time.Microsecond)
	send(t, client, []byte("x"))
	if got := spin.watch(&w.spinCredit, 0, w.comes); got != watchedData {
		t.Fatalf("a watch after a short wait: %v", got)
	}
}

func TestNobodyWatchesBesideOtherWork(t *testing.T) {
	spin := &spinner{window: time.Minute}
	w, _ := connPair(t, spin)
	other, _ := connPair(t, spin)

	spin.arriving.Add(1)
	if got := spin.watch(&w.spinCredit, 0, w.comes); got != notWatched {
		t.Errorf("between commands, while a value arrives: %v", got)
	}
	spin.arriving.Add(1)
	if got := spin.watch(&w.spinCredit, 1, w.comes); got != notWatched {
		t.Errorf("in a value, while another arrives: %v", got)
	}
	spin.arriving.Store(0)

	seen := make(chan watchResult)
	go func() { seen <- spin.watch(&w.spinCredit, 0, w.comes) }()
	for !spin.taken.Load() {
		runtime.Gosched()
	}
	if got := spin.watch(&other.spinCredit, 0, other.comes); got != notWatched {
		t.Errorf("while another watches: %v", got)
	}
	spin.arriving.Add(1)
	if got := <-seen; got != notWatched || w.spinCredit != fullCredit {
		t.Errorf("ended by a value of others: %v, patience %d", got, w.spinCredit)
	}
	if spin.window = 0; spin.watch(&other.spinCredit, 0, other.comes) != notWatched {
		t.Error("switched off, it watched")
	}
}

func TestMoveAway(t *testing.T) {
	runtime.LockOSThread() // not unlocked: the thread ends with the test
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	testneed.That(t, before.Count() >= 2, "a second core", "let this process use another one (taskset)")
	moved := 0
	for range 20 {
		from := currentCore()
		moveAway()
		if currentCore() != from {
			moved++
		}
	}
	if moved < 10 { // the kernel may move it back at once
		t.Errorf("%d of 20 times on another core", moved)
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("it may run on %v afterwards, before on %v (%v)", after, before, err)
	}
}

// Watching for the next command does not pay after small values, whichever way they went.
func TestSmallValuesAreNotWatchedFor(t *testing.T) {
	for name, test := range map[string]struct {
		arrives, sent int
		watched       bool
	}{
		"small, arrived": {arrives: 100_000},
		"small, sent":    {sent: 100_000},
		"large, arrived": {arrives: watchFrom, watched: true},
		"large, sent":    {sent: watchFrom, watched: true},
	} {
		c, client := connPair(t, &spinner{window: time.Microsecond})
		between := false
		c.Idle = func() bool { return between }
		p := make([]byte, max(test.arrives, test.sent))
		done := make(chan error, 1)
		var err error
		if test.arrives > 0 {
			go func() { done <- moveAll(p, func(p []byte) (int, error) { return unix.Write(client, p) }) }()
			c.BeginValue(int64(test.arrives))
			if err = c.Gather(p[:1000], 0); err == nil {
				err = c.Pour(int64(test.arrives)-1000, &memory{})
			}
		} else {
			reply := bytes.Clone(p)
			go func() { done <- moveAll(p, func(p []byte) (int, error) { return unix.Read(client, p) }) }()
			_, err = c.Write(reply)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if err := <-done; err != nil {
			t.Fatal(name, err)
		}
		c.spinCredit = fullCredit // a value that arrives may have been watched for
		if c.watchesForNext(); (c.spinCredit < fullCredit) != test.watched {
			t.Errorf("%s: watched %v, want %v", name, c.spinCredit < fullCredit, test.watched)
		}
		send(t, client, []byte("x"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(name, err)
		}
		if c.watchesForNext(); (c.spinCredit < fullCredit-1) != test.watched {
			t.Errorf("%s: after the rest of its command, watched %v, want %v", name, !test.watched, test.watched)
		}
		between = true
		send(t, client, []byte("x"))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(name, err)
		}
		before := c.spinCredit
		if c.watchesForNext(); c.spinCredit == before {
			t.Errorf("%s: not watched after a command without a value", name)
		}
	}
}

// moveAll calls move for what it left of p, until that is nothing.
func moveAll(p []byte, move func(p []byte) (int, error)) error {
	for len(p) > 0 {
		n, err := move(p)
		if n <= 0 {
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
		p = p[n:]
	}
	return nil
}
