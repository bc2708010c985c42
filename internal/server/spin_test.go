package server

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
)

// wirePair is a wire and the descriptor of its client.
func wirePair(t *testing.T, spin *spinner) (*wire, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	lot, err := newParking()
	if err != nil {
		t.Fatal(err)
	}
	w, err := wireOf(fds[0], true, lot, spin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fds[1])
		w.close()
		lot.close()
	})
	return w, fds[1]
}

func send(t *testing.T, fd int, p []byte) {
	t.Helper()
	if n, err := unix.Write(fd, p); err != nil || n != len(p) {
		t.Fatalf("%d of %d bytes, %v", n, len(p), err)
	}
}

func TestWatchSeesWhatComes(t *testing.T) {
	spin := &spinner{window: time.Minute}
	w, client := wirePair(t, spin)
	w.spins = 1
	time.AfterFunc(10*time.Millisecond, func() { _, _ = unix.Write(client, []byte("x")) })
	if got := spin.watch(w, 0); got != came || w.spins != fullPatience {
		t.Fatalf("saw %v, patience %d; want %v and %d", got, w.spins, came, fullPatience)
	}
}

// What does not pay is not done again, until a wait shows that it would pay.
func TestWatchingInVainEnds(t *testing.T) {
	spin := &spinner{window: time.Microsecond}
	w, client := wirePair(t, spin)
	for i := range fullPatience {
		if got := spin.watch(w, 0); got != inVain {
			t.Fatalf("watch %d saw %v", i, got)
		}
	}
	if got := spin.watch(w, 0); got != unwatched {
		t.Fatalf("a watch after %d in vain: %v", fullPatience, got)
	}
	spin.slept(w, time.Second)
	if got := spin.watch(w, 0); got != unwatched {
		t.Fatalf("a watch after a long wait: %v", got)
	}
	spin.slept(w, 2*time.Microsecond)
	send(t, client, []byte("x"))
	if got := spin.watch(w, 0); got != came {
		t.Fatalf("a watch after a short wait: %v", got)
	}
}

func TestNobodyWatchesBesideOtherWork(t *testing.T) {
	spin := &spinner{window: time.Minute}
	w, _ := wirePair(t, spin)
	other, _ := wirePair(t, spin)

	spin.arriving.Add(1)
	if got := spin.watch(w, 0); got != unwatched {
		t.Errorf("between commands, while a value arrives: %v", got)
	}
	spin.arriving.Add(1)
	if got := spin.watch(w, 1); got != unwatched {
		t.Errorf("in a value, while another arrives: %v", got)
	}
	spin.arriving.Store(0)

	seen := make(chan sight)
	go func() { seen <- spin.watch(w, 0) }()
	for !spin.taken.Load() {
		runtime.Gosched()
	}
	if got := spin.watch(other, 0); got != unwatched {
		t.Errorf("while another watches: %v", got)
	}
	spin.arriving.Add(1)
	if got := <-seen; got != unwatched || w.spins != fullPatience {
		t.Errorf("ended by a value of others: %v, patience %d", got, w.spins)
	}
	if spin.window = 0; spin.watch(other, 0) != unwatched {
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
