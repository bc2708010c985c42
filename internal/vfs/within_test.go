package vfs

import (
	"context"
	"errors"
	"testing"
)

// TestWithin: who waits has what comes in time, and its error.
func TestWithin(t *testing.T) {
	failed := errors.New("failed")
	for _, want := range []error{nil, failed} {
		v, late, err := Within(t.Context(), func() (int, error) { return 7, want }, func(int) { t.Error("dropped") })
		if v != 7 || late || err != want {
			t.Errorf("%d, %v, %v", v, late, err)
		}
	}
}

// TestWithinTooLate: who waits leaves when the context ends, and what comes after that is dropped.
func TestWithinTooLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answers, dropped := make(chan struct{}), make(chan int)
	v, late, err := Within(ctx, func() (int, error) {
		<-answers
		return 7, nil
	}, func(v int) { dropped <- v })
	if v != 0 || !late || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v, %v", v, late, err)
	}
	close(answers)
	if got := <-dropped; got != 7 {
		t.Errorf("%d is dropped", got)
	}
}
