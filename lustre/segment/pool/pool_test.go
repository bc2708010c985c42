package pool

import (
	"context"
	"errors"
	"testing"

	"cascadekv/tiers"
)

// TestAbandoned: a caller leaves an operation that hangs, and learns when it ends.
func TestAbandoned(t *testing.T) {
	p := make(Pool, 1)
	ctx, cancel := context.WithCancel(t.Context())
	begun, server := make(chan struct{}), make(chan struct{})
	go func() { <-begun; cancel() }()
	ended := make(chan struct{})
	err := p.Within(ctx, "read", func() { close(ended) }, func() error {
		close(begun)
		<-server
		return nil
	})
	var busy *Busy
	if !errors.As(err, &busy) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	select {
	case <-busy.Done():
		t.Fatal("it has ended already")
	default:
	}
	full, stop := context.WithCancel(t.Context())
	stop()
	if err := p.Run(full, "another", &Job{}, func() { t.Error("it was called") }); !errors.Is(err, tiers.ErrUnavailable) || errors.As(err, &busy) {
		t.Errorf("an operation without a slot: %v", err)
	}
	close(server)
	<-busy.Done()
	<-ended
}

// TestResult: whoever waits gets the result, with and without a deadline.
func TestResult(t *testing.T) {
	p, want := make(Pool, 1), errors.New("it went wrong")
	for _, ctx := range []context.Context{context.Background(), t.Context()} {
		ends := 0
		if err := p.Within(ctx, "write", func() { ends++ }, func() error { return want }); err != want || ends != 1 || len(p) != 0 {
			t.Errorf("error %v, %d ends, %d slots taken", err, ends, len(p))
		}
	}
}

// TestLock: its waiters can give up.
func TestLock(t *testing.T) {
	l := NewLock()
	if err := l.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	l.Release()
	if err := l.Acquire(t.Context()); err != nil {
		t.Error(err)
	}
}
