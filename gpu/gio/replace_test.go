package gio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveReplaced is a server of one file that is read and one that is not there yet, with a queue and its device.
func serveReplaced(t *testing.T, engine string) (*Server, *Queue) {
	t.Helper()
	s, err := Serve(Options{Depth: 4, NumIOCTX: 16, Files: []*os.File{testFile(t, os.O_RDONLY), nil}, Replaces: true, DataBytes: dataBytes, Engine: engine})
	if err != nil {
		t.Fatal(err)
	}
	q := s.Queue()
	q.StartDevice()
	t.Cleanup(func() {
		_, _ = s.Close(bound(t)), q.Close()
		<-s.Done()
	})
	return s, q
}

// outcome is that of 16 I/Os of a file.
func outcome(t *testing.T, q *Queue, file uint32, op Op) (*IOCB, error) {
	t.Helper()
	b := get(t, q, 1, nil)[0]
	fill(b, 3, 16, op)
	for i := range 16 {
		b.Ctx[i].File = file
		copy(q.Data()[cell(b, i):], pattern(b.Ctx[i].Offset, blockBytes))
	}
	issue(t, q, 0, b.ID)
	err := q.WaitCQE(bound(t), b.ID)
	if failed := q.Release(b.ID); failed != nil {
		t.Error(failed)
	}
	return b, err
}

// TestReplace: a file that is not there fails, one that is replaced is the other one from then on, with what can be done to that, and the ring keeps no
// more of it than before.
func TestReplace(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		before := held(t)
		s, q := serveReplaced(t, engine)
		for file := range uint32(2) {
			if _, err := outcome(t, q, file, Write); !errors.Is(err, unix.EBADF) {
				t.Errorf("a write to file %d: %v", file, err)
			}
		}
		if _, err := outcome(t, q, 1, Read); !errors.Is(err, unix.EBADF) {
			t.Errorf("a read of no file: %v", err)
		}
		for file := range 2 {
			path := t.TempDir() + "/other"
			if err := os.WriteFile(path, make([]byte, fileBlocks*blockBytes), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Replace(file, f), f.Close()); err != nil {
				t.Fatal(err)
			}
			if b, err := outcome(t, q, uint32(file), Read); err != nil || !bytes.Equal(q.Data()[cell(b, 5):][:blockBytes], make([]byte, blockBytes)) {
				t.Errorf("file %d is the old one: %v", file, err)
			}
			b, err := outcome(t, q, uint32(file), Write)
			if err != nil {
				t.Errorf("a write to what file %d is now: %v", file, err)
			}
			got, err := os.ReadFile(path)
			if at := b.Ctx[5].Offset; err != nil || !bytes.Equal(got[at:][:blockBytes], pattern(at, blockBytes)) {
				t.Errorf("file %d was not written: %v", file, err)
			}
		}
		f := testFile(t, os.O_RDONLY)
		for _, i := range []int{-1, 2} {
			if err := s.Replace(i, f); !errors.Is(err, ErrOption) {
				t.Errorf("file %d: %v", i, err)
			}
		}
		if err := errors.Join(s.Close(bound(t)), q.Close()); err != nil {
			t.Error(err)
		}
		<-s.Done()
		if err := s.Replace(0, f); !errors.Is(err, ErrGone) {
			t.Errorf("after the end: %v", err)
		}
		if after := held(t); after != before {
			t.Errorf("%s, before it was %s", after, before)
		}
		q = initQueue(t, engine, Options{Device: small, Files: []*os.File{f}})
		if _, err := outcome(t, q, 0, Write); !errors.Is(err, unix.EBADF) && !errors.Is(err, unix.EACCES) {
			t.Errorf("a write by a queue that does not: %v", err)
		}
	})
}

// TestReplaceMeanwhile: files are replaced while others read and write, and while the server ends.
func TestReplaceMeanwhile(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		s, q := serveReplaced(t, engine)
		f := testFile(t, os.O_RDWR)
		var all sync.WaitGroup
		all.Go(func() {
			for range 50 {
				if _, err := outcome(t, q, 0, Read); err != nil {
					t.Error(err)
				}
			}
		})
		for range 20 {
			if err := errors.Join(s.Replace(0, f), s.Replace(1, f)); err != nil {
				t.Error(err)
			}
		}
		all.Wait()
		all.Go(func() { _ = s.Close(bound(t)) })
		for range 20 {
			if err := s.Replace(1, f); err != nil && !errors.Is(err, ErrGone) {
				t.Error(err)
			}
		}
		all.Wait()
	})
}

// TestReplaceThatHangs: while a file is replaced, which may wait for a disk that hangs, the memfds are handed out, and Close ends with its context; the server ends
// after it.
func TestReplaceThatHangs(t *testing.T) {
	s, q := serveReplaced(t, EngineUser)
	s.replacing.Lock()
	ended := make(chan error, 1)
	go func() {
		f, err := s.File()
		if err == nil {
			err = f.Close()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if closed := s.Close(ctx); !errors.Is(closed, ErrBusy) {
			err = errors.Join(err, fmt.Errorf("Close: %w", closed))
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("something waits for the file")
	}
	if _, err := q.GetIOCB(1, nil); !errors.Is(err, ErrGone) {
		t.Errorf("a server that is being closed: %v", err)
	}
	select {
	case <-s.quiet:
		t.Error("it has ended before the file is replaced")
	default:
	}
	s.replacing.Unlock()
	if err := s.Close(bound(t)); err != nil {
		t.Error(err)
	}
	if err := s.Replace(1, testFile(t, os.O_RDONLY)); !errors.Is(err, ErrGone) {
		t.Errorf("after the end: %v", err)
	}
}
