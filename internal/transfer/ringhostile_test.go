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

// hideEvent has the device of a ring wait for ever for an event whose value is in its IOCB: as if the word had been lowered again before it looked.
func (r *ringRig) hideEvent(value uint32) {
	r.t.Helper()
	for at := 0; at < len(r.words); at += 4 {
		if w := (*atomic.Uint32)(unsafe.Pointer(&r.words[at])); w.Load() == value {
			w.Add(1 << 20)
			return
		}
	}
	r.t.Fatal("no IOCB waits for the event")
}

// TestRingWhoseDeviceSeesNothing: a client whose word comes and goes has the disks taken for hanging by nobody.
func TestRingWhoseDeviceSeesNothing(t *testing.T) {
	const value = 0x1234567
	r := newStoreRig(t, direct.Options{})
	r.patience.disk = 20 * time.Millisecond
	r.fill(0, span12()...)
	r.put(Options{Job: 1, After: After{1, value}}, 0, 0, 1)
	r.awaitReading()
	r.hideEvent(value)
	r.raise(1, value)
	if got := r.ended(1)[1]; got != "11" {
		t.Errorf("a store: %s", got)
	}
	r.wantStored(0, "host", 0, 1)
	clear(r.mem)
	r.load(2, After{2, value + 1}, 0, 3, 4)
	r.awaitReading()
	r.hideEvent(value + 1)
	r.raise(2, value+1)
	if got := r.ended(1)[2]; got != "00" {
		t.Errorf("a load: %s", got)
	}
	r.blank("a load whose event was not seen")
	r.patience.disk = time.Minute
	r.fill(0, 5)
	r.put(Options{Job: 3, After: After{3, 0}}, 0, 5)
	if got := r.ended(1)[3]; got != "1" {
		t.Errorf("the next store: %s", got)
	}
	r.wantStored(0, "nvme", 5)
	r.load(4, After{3, 0}, 0, 6)
	if got := r.ended(1)[4]; got != "1" || r.in(keyAt(6)) != "nvme" {
		t.Errorf("the next load: %s", got)
	}
	if st := r.store.Stats(); st.Tiers[1].Errors != 0 {
		t.Errorf("%d errors of the disks", st.Tiers[1].Errors)
	}
	r.quiet()
}
