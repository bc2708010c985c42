package events

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func numbered(n int) Event { return Event{Kind: Stored, Key: fmt.Sprint(n)} }

func TestLogIsOffUntilAsked(t *testing.T) {
	l := New(4, 0)
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
		l := New(kept, 0)
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
	l := New(4, 0)
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
