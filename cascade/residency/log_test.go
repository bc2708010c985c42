package residency_test

import (
	"context"
	"log/slog"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// askingLog is a log whose writer asks for what the state has, as one might
// that is slow for another reason: a deadlock if lines are written with the mutex
// held.
type askingLog struct {
	slog.Handler
	state *residency.State
	lines *int
}

func (l askingLog) Enabled(context.Context, slog.Level) bool { return true }

func (l askingLog) Handle(context.Context, slog.Record) error {
	l.state.Namespaces()
	*l.lines++
	return nil
}

func TestLinesAreLoggedWithoutTheMutex(t *testing.T) {
	r := parttest.New(t)
	lines := 0
	r.State.Log = slog.New(askingLog{slog.DiscardHandler, r.State, &lines})
	r.Put(parttest.Name("a"), parttest.Data(1, 100))
	v := r.Pin("a")
	if v.Verify(v.CRC() + 1) {
		t.Error("a wrong checksum is right")
	}
	v.Release()
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
}
