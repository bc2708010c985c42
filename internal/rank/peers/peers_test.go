package peers

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// TestTogetherIsLeftBehind checks that a rank that waits for others in MPI can
// be stopped.
func TestTogetherIsLeftBehind(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	never := make(chan struct{})
	_, err := together(ctx, slog.New(slog.DiscardHandler), func() (int, error) {
		cancel()
		<-never
		return 0, nil
	})
	if !errors.Is(err, errNotTogether) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want errNotTogether for %v", err, context.Canceled)
	}
	close(never)
	got, err := together(t.Context(), slog.New(slog.DiscardHandler), func() (int, error) { return 7, nil })
	if got != 7 || err != nil {
		t.Errorf("got %d, %v; want what the call gave", got, err)
	}
}
