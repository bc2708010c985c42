package cascade

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"cascadekv/cascade/residency"
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

// askingLog is a log whose writer asks the store for its statistics, as one might
// that is slow for another reason: a deadlock if lines are written with the mutex
// held.
type askingLog struct {
	slog.Handler
	rig   *rig
	lines *int
}

func (l askingLog) Enabled(context.Context, slog.Level) bool { return true }

func (l askingLog) Handle(context.Context, slog.Record) error {
	if l.rig.Store != nil {
		l.rig.Stats()
		*l.lines++
	}
	return nil
}

func TestLinesAreLoggedWithoutTheMutex(t *testing.T) {
	r := newRig(t, 8<<20, true)
	lines := 0
	r.state.Log = slog.New(askingLog{slog.DiscardHandler, r, &lines})
	r.put(ns("a"), data(1, 100))
	v, err := r.Get(t.Context(), "ns", "a", Unverified)
	if err != nil {
		t.Fatal(err)
	}
	if v.Verify(v.CRC() + 1) {
		t.Error("a wrong checksum is right")
	}
	v.Release()
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
}
