package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func numbered(n int) Event { return Event{Kind: Stored, Key: fmt.Sprint(n)} }

func TestLogIsOffUntilAsked(t *testing.T) {
	l := New(Limits[Event]{Kept: 4}, 0)
	l.Add(numbered(1))
	if next, lost, events := l.Since(0, 10); next != 1 || lost != 0 || events != nil {
		t.Errorf("first asked: %d, %d, %v", next, lost, events)
	}
	l.Add(numbered(1))
	if next, lost, events := l.Since(1, 10); next != 2 || lost != 0 || !slices.Equal(events, []Event{numbered(1)}) {
		t.Errorf("%d, %d, %v", next, lost, events)
	}
}

// TestLogAgainstAList asks random questions of a log and of a list that
// forgets nothing.
func TestLogAgainstAList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for kept := 1; kept < 9; kept++ {
		l := New(Limits[Event]{Kept: kept}, 0)
		l.Since(0, 0)
		total := 0
		for range 2000 {
			if rng.IntN(3) > 0 {
				total++
				l.Add(numbered(total))
				continue
			}
			first, most := rng.IntN(total+3), rng.IntN(kept+2)
			next, lost, events := l.Since(uint64(first), most)
			oldest := max(1, total-kept+1)
			switch {
			case first == 0:
				if next != uint64(total+1) || lost != 0 || len(events) != 0 {
					t.Fatalf("from now on: %d, %d, %v", next, lost, events)
				}
				continue
			case first > total+1:
				if next != uint64(total+1) || lost != 1 || len(events) != 0 {
					t.Fatalf("event %d of %d: %d, %d, %v", first, total, next, lost, events)
				}
				continue
			}
			if want := max(0, oldest-first); lost != uint64(want) {
				t.Fatalf("kept %d: event %d of %d: %d are lost, want %d", kept, first, total, lost, want)
			}
			begin := max(first, oldest)
			if want := min(most, total+1-begin); len(events) != want || next != uint64(begin+want) {
				t.Fatalf("kept %d: event %d of %d, %d at most: %d, next %d", kept, first, total, most, len(events), next)
			}
			for i, e := range events {
				if e != numbered(begin+i) {
					t.Fatalf("event %d is %q", begin+i, e.Key)
				}
			}
		}
	}
}

func TestLogWakesWhoWaits(t *testing.T) {
	l := New(Limits[Event]{Kept: 4}, 0)
	next, _, _ := l.Since(0, 0)
	const waiters = 8
	came := make(chan bool, waiters)
	for range waiters {
		go func() { came <- l.Wait(t.Context(), next) }()
	}
	l.Add(numbered(1))
	for range waiters {
		if !<-came {
			t.Error("a wait ended without an event")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.Wait(ctx, next+1) {
		t.Error("an event that nobody added")
	}
}

// TestLogIsBoundedByCost: the oldest events go until the rest costs no more than allowed, and
// an event that costs more alone is lost itself.
func TestLogIsBoundedByCost(t *testing.T) {
	l := New(Limits[Event]{Kept: 8, Most: 10, Cost: func(e *Event) int64 { return e.Size }}, 0)
	l.Since(0, 0)
	for _, size := range []int64{4, 4, 4, 1, 1} {
		l.Add(Event{Size: size})
	}
	if next, lost, events := l.Since(1, 10); next != 6 || lost != 1 || len(events) != 4 {
		t.Errorf("%d, %d lost, %v", next, lost, events)
	}
	l.Add(Event{Size: 11})
	l.Add(Event{Size: 2})
	if next, lost, events := l.Since(1, 10); next != 8 || lost != 6 || !slices.Equal(events, []Event{{Size: 2}}) {
		t.Errorf("%d, %d lost, %v", next, lost, events)
	}
}

// TestLogEndsWhenNobodyAsks: it is off then, keeps nothing, and who asks later learns of a loss.
func TestLogEndsWhenNobodyAsks(t *testing.T) {
	l := New(Limits[Event]{Kept: 4, Idle: time.Hour}, 0)
	l.Since(0, 0)
	l.Add(numbered(1))
	l.mu.asked = time.Now().Add(-2 * time.Hour)
	l.Add(numbered(2))
	if l.On() || l.mu.ring != nil {
		t.Error("the log is on, or keeps events")
	}
	l.Add(numbered(3))
	next, lost, events := l.Since(2, 10)
	if lost == 0 || len(events) != 0 {
		t.Errorf("%d lost, %v", lost, events)
	}
	l.Add(numbered(4))
	if _, lost, events := l.Since(next, 10); lost != 0 || !slices.Equal(events, []Event{numbered(4)}) {
		t.Errorf("%d lost, %v", lost, events)
	}
}
