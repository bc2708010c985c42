package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestOpenInTime: an opening that hangs is given up when it is called off, one
// that ends is waited for, and one that nobody calls off may take its time.
func TestOpenInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan struct{})
	defer close(hangs)
	got := make(chan error, 1)
	go func() {
		_, err := openInTime(ctx, 10*time.Millisecond, func() (rank, error) { <-hangs; return nil, nil })
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("it was given up before it was called off: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	select {
	case err := <-got:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not given up")
	}
	f := newFake()
	r, err := openInTime(ctx, time.Minute, func() (rank, error) { time.Sleep(10 * time.Millisecond); return f, nil })
	if r != f || err != nil {
		t.Errorf("%v, %v", r, err)
	}
}
