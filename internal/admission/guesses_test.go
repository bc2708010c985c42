package admission

import (
	"fmt"
	"testing"
	"time"
)

// TestGuessesBackOff: after some wrong passwords a source waits, longer and longer,
// whatever it sends meanwhile; other sources do not.
func TestGuessesBackOff(t *testing.T) {
	now := time.Unix(1000, 0)
	g := &Guesses{now: func() time.Time { return now }}
	wrong, right := func() bool { return false }, func() bool { return true }
	for i := range FreeGuesses {
		if ok, wait, failed := g.Try("a", wrong); ok || wait != 0 || failed != i+1 {
			t.Fatalf("guess %d: %v, %v, %d", i, ok, wait, failed)
		}
	}
	for i := range 12 {
		want := min(maxBackoff, FirstBackoff<<i)
		for range 3 {
			if ok, wait, _ := g.Try("a", right); ok || wait != want {
				t.Fatalf("after %d more: %v, wait %v, want %v", i, ok, wait, want)
			}
		}
		now = now.Add(want)
		if ok, wait, _ := g.Try("a", wrong); ok || wait != 0 {
			t.Fatalf("after the wait: %v, %v", ok, wait)
		}
	}
	if ok, _, _ := g.Try("b", right); !ok {
		t.Error("another source waits")
	}
	now = now.Add(forgetGuesses + time.Second)
	if _, _, failed := g.Try("a", wrong); failed != 1 {
		t.Errorf("%d failures long after", failed)
	}
}

// TestGuessesOfManySources: memory is bounded, and sources beyond it wait together.
func TestGuessesOfManySources(t *testing.T) {
	now := time.Unix(1000, 0)
	g := &Guesses{now: func() time.Time { return now }}
	looked := 0
	for i := range 10 * maxSources {
		g.Try(fmt.Sprint(i), func() bool { looked++; return false })
	}
	if len(g.mu.of) != maxSources || looked != maxSources+FreeGuesses {
		t.Errorf("%d sources are remembered, %d guesses looked at", len(g.mu.of), looked)
	}
	now = now.Add(forgetGuesses + time.Second)
	if ok, wait, failed := g.Try("new", func() bool { return false }); ok || wait != 0 || failed != 1 || len(g.mu.of) != 1 {
		t.Errorf("later: %v, %v, %d failures, %d sources", ok, wait, failed, len(g.mu.of))
	}
}
