package catalogue

import (
	"context"
	"sync"
	"testing"
	"time"

	"cascadekv/lustre/tuner"
)

// TestTune: work of another kind gives the index another shape, at a moment in
// which nothing is looked up, and all is found as before.
func TestTune(t *testing.T) {
	r := newRig(t)
	r.leave(1, 0, 300, 100)
	r.round()
	before := r.Stats()
	type told struct {
		d    tuner.Decision
		made bool
		err  error
	}
	events := make(chan told, 1000)
	work, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		err := r.Tune(work, TuneOptions{
			Tuner: tuner.Options{Window: 64, MinOps: 1}, Every: 2 * time.Millisecond, Quiet: 100 * time.Millisecond,
			Told: func(d tuner.Decision, made bool, err error) {
				select {
				case events <- told{d, made, err}:
				default:
				}
			},
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer done.Wait()
	defer stop()
	limit := time.After(time.Minute)
	for proposed := false; !proposed; {
		r.Find("model", []string{key(1)}) // look-ups alone: fewer runs
		select {
		case e := <-events:
			proposed = e.d.Verdict == tuner.Change
			if e.made {
				t.Fatalf("made while names are looked up: %v", e.d)
			}
		case <-limit:
			t.Fatal("no change is proposed")
		default:
		}
	}
	for made := false; !made; {
		select {
		case e := <-events:
			made = e.made
			if e.err != nil {
				t.Fatal(e.err)
			}
		case <-limit:
			t.Fatal("no change is made")
		}
	}
	after := r.Stats()
	if after.Retunes != 1 || after.SizeRatio == before.SizeRatio && after.Runs == before.Runs || after.Tuning == nil {
		t.Errorf("T=%d K=%d become T=%d K=%d in %d changes", before.SizeRatio, before.Runs, after.SizeRatio, after.Runs, after.Retunes)
	}
	r.wants(0, 300, data)
}
