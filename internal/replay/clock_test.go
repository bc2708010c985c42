package replay

import (
	"context"
	"io"
	"testing"
	"time"

	"cascadekv/internal/trace"
)

// The clock shows each request's time, since the first; a run goes on where the one before
// ended, and no time goes back.
func TestClockGoesByTheTrace(t *testing.T) {
	clock := &Clock{}
	var seen []time.Duration
	o := Options{
		Trace: func() (trace.Source, error) {
			return listed(trace.Request{Timestamp: 500, Hashes: []uint64{1}}, trace.Request{Timestamp: 800, Hashes: []uint64{2}}, trace.Request{Timestamp: 700, Hashes: []uint64{3}},
				trace.Request{Timestamp: 3500, Hashes: []uint64{4}}), nil
		},
		NewTarget: func(context.Context, string) (Target, error) { return newFake(16, 0), nil },
		Policies:  []string{"a", "b"}, BlockBytes: 16, Clock: clock,
		Progress: func(Progress) { seen = append(seen, clock.Now()) },
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{0, 300, 300, 3000, 3000, 3300, 3300, 6000} {
		if i >= len(seen) || seen[i] != want*time.Millisecond {
			t.Fatalf("times %v", seen)
		}
	}
}

// No request is begun before its time in the trace, and a run that is paced ends with its context.
func TestPaced(t *testing.T) {
	clock := &Clock{}
	start, early := time.Now(), 0
	o := Options{
		Trace: func() (trace.Source, error) {
			return listed(trace.Request{Hashes: []uint64{1}}, trace.Request{Timestamp: 60, Hashes: []uint64{1}}, trace.Request{Timestamp: 90, Hashes: []uint64{1}}), nil
		},
		NewTarget:  func(context.Context, string) (Target, error) { return newFake(16, 0), nil },
		BlockBytes: 16, Clock: clock, Paced: true,
		Progress: func(Progress) {
			if time.Since(start) < clock.Now() {
				early++
			}
		},
	}
	r, err := Run(t.Context(), o)
	if err != nil || early > 0 || r[0].HitBlocks != 2 {
		t.Errorf("%d requests were early, %v, %v", early, r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Trace = func() (trace.Source, error) {
		return listed(trace.Request{Hashes: []uint64{1}}, trace.Request{Timestamp: 3600e3, Hashes: []uint64{1}}), nil
	}
	o.Progress = func(Progress) { cancel() }
	if _, err := Run(ctx, o); err == nil {
		t.Error("a run that was cancelled ended well")
	}
}

func listed(requests ...trace.Request) trace.Source {
	return &list{left: requests, end: io.EOF, closed: new(int)}
}
