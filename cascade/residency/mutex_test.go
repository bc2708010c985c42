package residency_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// What is left for later is done once the mutex is free, in order, and once.
func TestLaterIsAfterUnlock(t *testing.T) {
	var m residency.LateMutex
	var did []int
	m.Lock()
	for i := range 3 {
		m.Later(func() {
			m.Lock() // a deadlock if it is still held
			did = append(did, i)
			m.Unlock()
		})
	}
	if m.Unlock(); !slices.Equal(did, []int{0, 1, 2}) {
		t.Errorf("did %v", did)
	}
	m.Lock()
	if m.Unlock(); len(did) != 3 {
		t.Errorf("did %v", did)
	}
}

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
