package transfer

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/internal/handover"
)

// beside runs do until the test ends.
func beside(t *testing.T, do func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				do()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-ended })
}

// TestRingWhoseTailGoesBack: a client that writes over what the ring's device looks at does not keep the rank busy for ever.
func TestRingWhoseTailGoesBack(t *testing.T) {
	r := newRingRig(t, direct.Options{Engine: gio.EngineUser}, nil)
	const sqTail = 64 // docs/gio.md §2.1
	word := (*atomic.Uint32)(unsafe.Pointer(&r.words[sqTail]))
	beside(t, func() { word.Add(^uint32(0)); time.Sleep(time.Millisecond) })
	time.Sleep(10 * time.Millisecond)
	if err := r.x.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestRingWhoseSocketBlocks: a socket that its client has filled, and whose calls it has made blocking ones, is refused.
func TestRingWhoseSocketBlocks(t *testing.T) {
	r := newRingRig(t, direct.Options{Engine: gio.EngineUser}, nil)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	for err == nil {
		_, err = unix.Write(fds[1], make([]byte, 4096))
	}
	mine, err := unix.Dup(fds[1])
	must(t, err)
	t.Cleanup(func() { CloseAll(fds[0], mine) })
	beside(t, func() { _ = unix.SetNonblock(mine, false); time.Sleep(20 * time.Microsecond) })
	if _, err := r.x.AttachRing(fds[1], -1, 1<<20, false); err == nil {
		t.Error("a ring was sent to a socket without room")
	}
}

// TestRingGoesOn: a job that was to be handed over and was not goes on.
func TestRingGoesOn(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	r.Rest()
	r.load(1, After{1, 1}, 0, 0, 1)
	var to handover.Conn
	r.x.Save(&to)
	if len(to.Jobs) != 1 || !to.Jobs[0].Over || string(to.Jobs[0].Status) != "\x02\x02" || len(to.Regions) != 0 {
		t.Errorf("the other program gets %+v", to)
	}
	r.Resume()
	r.raise(1, 1)
	if got := r.ended(1)[1]; got != "11" {
		t.Errorf("statuses %s", got)
	}
	r.quiet()
}
