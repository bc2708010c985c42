package region

import (
	"encoding/binary"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/testneed"
)

// eventfd makes one whose reads and writes wait.
func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// drain reads the counter of an eventfd, 0 where a read would wait.
func drain(fd int) uint64 {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	var p [8]byte
	if n, err := unix.Poll(fds[:], 0); n != 1 || err != nil {
		return 0
	}
	_, _ = unix.Read(fd, p[:])
	return binary.NativeEndian.Uint64(p[:])
}

// fill has the next write of 1 to an eventfd wait, if it is empty. It does not wait itself.
func fill(fd int) {
	_ = unix.SetNonblock(fd, true)
	_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
	_ = unix.SetNonblock(fd, false)
}

func needAIO(t *testing.T) {
	testneed.That(t, theBell() != nil, "the kernel's AIO", "CONFIG_AIO, not forbidden by seccomp, fs.aio-max-nr")
}

// TestRing: an eventfd counts how often it was rung, with the kernel's AIO and without.
func TestRing(t *testing.T) {
	for name, ring := range map[string]func(int){"AIO": Ring, "a write": count} {
		fd := eventfd(t)
		for range 1000 {
			ring(fd)
		}
		if n := drain(fd); n != 1000 {
			t.Errorf("by %s it counts %d", name, n)
		}
		ring(-1) // what is none harms nobody
		ring(fd)
		if n := drain(fd); n != 1 {
			t.Errorf("by %s it counts %d after one that is none", name, n)
		}
	}
	needAIO(t)
	full := eventfd(t)
	fill(full)
	if Ring(full); drain(full) != math.MaxUint64-1 {
		t.Error("one that is full is changed")
	}
	if fd := eventfd(t); !theBell().signal(fd) || drain(fd) != 1 {
		t.Error("AIO does not signal")
	}
}

// TestRingOfAClientThatFillsIt: a client that makes its eventfd full at any moment, and leaves it so, is not waited for.
func TestRingOfAClientThatFillsIt(t *testing.T) {
	needAIO(t)
	fd := eventfd(t)
	var rung atomic.Int64
	stop, stopped, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			fill(fd)
			for before := rung.Load(); rung.Load() < before+2; { // it was rung while it is full
				select {
				case <-stop:
					return
				default:
				}
			}
			drain(fd)
		}
	}()
	go func() {
		defer close(done)
		for range 20_000 {
			Ring(fd)
			rung.Add(1)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits for its client")
	}
	close(stop)
	drain(fd)
	<-stopped
}
