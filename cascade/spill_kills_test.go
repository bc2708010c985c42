package cascade

import (
	"context"
	"os"
	"testing"
	"time"
)

// An end that was set just before the process was killed holds once the block, which
// also lies in a spilled file, has left memory.
func TestSpillEndSetBeforeAKill(t *testing.T) {
	w := newWorld(t)
	w.r.chain("k", 0, 100, 1000)
	w.spill()
	w.close(false)
	w.open()
	w.spill()
	w.r.want("k0", data(1000, 30_000))
	if !w.r.Expire(t.Context(), "ns", "k0", w.now().Add(3*time.Hour)) {
		t.Fatal("no end")
	}
	w.kill(true, true)
	if info, _ := w.r.Stat(t.Context(), "ns", "k0"); info.Expires.IsZero() {
		t.Error("no end after a kill")
	}
	w.r.chain("other", 0, 200, 5000)
	w.spill()
	w.r.chain("another", 0, 200, 7000)
	if _, err := w.r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info, ok := w.r.Stat(t.Context(), "ns", "k0"); !ok || info.Expires.IsZero() {
		t.Errorf("it has lost its end: %v", info)
	}
	_ = w.r.Close(context.Background())
}

// A name that was bound, just before the process was killed, to one that only the catalogue has is there afterwards, and
// goes with it.
func TestSpillBoundBeforeAKill(t *testing.T) {
	w := newWorld(t)
	w.r.chain("k", 0, 100, 1000)
	w.spill()
	w.close(false)
	w.open()
	w.spill()
	e := ns("half")
	e.Parent, e.Bound = "k7", true
	w.r.put(e, data(5, 30_000))
	w.kill(true, true)
	w.r.want("half", data(5, 30_000))
	if !w.r.Delete(t.Context(), "ns", "k7") {
		t.Error("the parent can not be deleted")
	}
	w.r.want("half", nil)
	_ = w.r.Close(context.Background())
}

// An arena of an earlier run has older versions than the files.
func TestSpillOldArena(t *testing.T) {
	w := newWorld(t)
	w.r.chain("k", 0, 100, 1000)
	w.r.put(ns("a"), data(1, 30_000))
	w.r.put(ns("b"), data(2, 30_000))
	w.close(true)
	image, err := os.ReadFile(w.arena)
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(w.arena)
	w.open()
	w.r.put(ns("a"), data(3, 30_000))
	w.r.Delete(t.Context(), "ns", "b")
	if err := w.r.others.FlushTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.r.chain("other", 0, 200, 5000)
	w.spill()
	w.close(false)
	if err := os.WriteFile(w.arena, image, 0o600); err != nil {
		t.Fatal(err)
	}
	w.open()
	w.r.want("a", data(3, 30_000))
	w.r.want("b", nil)
	_ = w.r.Close(context.Background())
}
