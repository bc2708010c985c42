package gio

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDouble: the user-space engine as tests use it: I/Os that end in an order of
// the test's, fail, come to less, or stall. Its memory is the heap's, where the
// race detector sees host, device and engine.
func TestDouble(t *testing.T) {
	var last atomic.Pointer[chan struct{}] // what the first I/O of an IOCB waits for
	fault := func(io IO) (f Fault) {
		switch {
		case io.Index == 0:
			f.Until = *last.Load()
		case io.Index == 15:
			close(*last.Load())
		case io.Index%7 == 3:
			f.Errno = unix.EIO
		case io.Index%7 == 5:
			f.Short = 100
		}
		return f
	}
	q := initQueue(t, "", Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}, Fault: fault, heap: true})
	b := get(t, q, 1, nil)[0]
	for round := range 20 {
		c := make(chan struct{})
		last.Store(&c)
		clear(q.Data())
		fill(b, round, 16, Read)
		issue(t, q, 0, b.ID)
		var failed *IOError
		if err := q.WaitCQE(bound(t), b.ID); !errors.As(err, &failed) || failed.Failed != 4 {
			t.Fatalf("round %d: %v", round, err)
		}
		for i := range 16 {
			if want := i == 3 || i == 10 || i == 5 || i == 12; b.Failed(i) != want {
				t.Errorf("failed(%d) is %v", i, !want)
			}
		}
		checkData(t, q, b, 16)
	}
}

// TestManyHosts: goroutines share a queue, each with IOCBs of its own and events
// raised by another.
func TestManyHosts(t *testing.T) {
	q := initQueue(t, "", Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}, heap: true})
	var all sync.WaitGroup
	for g := range 6 {
		all.Go(func() {
			for round := range 15 {
				value := uint32(round + 1)
				got, err := q.GetIOCB(1, &Event{g + 1, value})
				if errors.Is(err, ErrNoIOCB) {
					time.Sleep(100 * time.Microsecond)
					q.Word(g + 1).Store(value)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				b := got[0]
				fill(b, round+g, 16, Read)
				if err := q.IssueIO([]uint32{b.ID}, 1+g%3); err != nil {
					t.Error(err)
					return
				}
				go q.Word(g + 1).Store(value)
				if err := q.WaitCQE(context.Background(), b.ID); err != nil {
					t.Error(err)
					return
				}
				checkData(t, q, b, 16)
				if err := q.Release(b.ID); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestStalledDouble: Close waits for an I/O that does not end, and a wait that is
// under way then ends.
func TestStalledDouble(t *testing.T) {
	until := make(chan struct{})
	var stalled atomic.Int32
	fault := func(IO) Fault {
		stalled.Add(1)
		return Fault{Until: until}
	}
	s, err := Serve(Options{Depth: 2, NumIOCTX: 4, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	q := s.Queue()
	q.StartDevice()
	b := get(t, q, 1, nil)[0]
	fill(b, 0, 4, Read)
	issue(t, q, 0, b.ID)
	if err := waitUntil(t, func() bool { return stalled.Load() > 0 }); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- q.WaitCQE(context.Background(), b.ID) }()
	short, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := q.WaitCQE(short, b.ID); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
	short, cancel = context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if err := s.Close(short); !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	if err := <-waited; !errors.Is(err, ErrGone) {
		t.Errorf("a wait when the server closes: %v", err)
	}
	if _, err := q.GetIOCB(1, nil); !errors.Is(err, ErrGone) {
		t.Errorf("an IOCB of a server that closes: %v", err)
	}
	close(until)
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	closeServer(t, s)
}

// TestCancel: an IOCB that waits for its event can be given up: nothing of it is done, then or when the event comes, and its
// place serves the next ones.
func TestCancel(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		q := initQueue(t, engine, Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}})
		b := get(t, q, 1, &Event{1, 1})[0]
		for round := range uint32(20) {
			b.b.eventValue = round + 1
			clear(q.Data())
			fill(b, int(round), 7, Read)
			issue(t, q, 0, b.ID)
			if err := q.Cancel(b.ID); err != nil {
				t.Fatal(err)
			}
			if err := q.WaitCQE(bound(t), b.ID); !errors.Is(err, ErrCancelled) {
				t.Fatalf("round %d: %v", round, err)
			}
			q.Word(1).Store(round + 1)
			fill(b, int(round)+1, 3, Read) // other entries, at other places
			b.Ctx[0].Address, b.Ctx[1].Address, b.Ctx[2].Address = 100*blockBytes, 101*blockBytes, 102*blockBytes
			issue(t, q, 0, b.ID)
			if err := q.WaitCQE(bound(t), b.ID); err != nil {
				t.Fatal(err)
			}
			for i := range 7 {
				if !bytes.Equal(q.Data()[cell(b, i):][:blockBytes], make([]byte, blockBytes)) {
					t.Fatalf("round %d: block %d was read", round, i)
				}
			}
			for i := range 3 {
				if !bytes.Equal(q.Data()[(100+i)*blockBytes:][:blockBytes], pattern(b.Ctx[i].Offset, blockBytes)) {
					t.Fatalf("round %d: block %d has other bytes", round, i)
				}
			}
		}
		if err := q.Cancel(q.r.depth); !errors.Is(err, ErrState) {
			t.Errorf("an IOCB that is none: %v", err)
		}
	})
}

// TestCancelTooLate: an IOCB that has begun is done.
func TestCancelTooLate(t *testing.T) {
	begun, stall := make(chan struct{}, 1), make(chan struct{})
	fault := func(io IO) (f Fault) {
		if io.Index == 0 {
			begun <- struct{}{}
			f.Until = stall
		}
		return f
	}
	q := initQueue(t, "", Options{Device: small, Files: []*os.File{testFile(t, os.O_RDONLY)}, Fault: fault, heap: true})
	b := get(t, q, 1, nil)[0]
	fill(b, 1, 16, Read)
	issue(t, q, 0, b.ID)
	<-begun
	if err := q.Cancel(b.ID); err != nil {
		t.Fatal(err)
	}
	close(stall)
	if err := q.WaitCQE(bound(t), b.ID); err != nil {
		t.Fatal(err)
	}
	checkData(t, q, b, 16)
}
