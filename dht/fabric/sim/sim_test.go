package sim

import (
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

// serve joins a rank that serves the suite.
func serve(t *testing.T, w *World, rank fabric.Rank, incarnation uint64) fabric.Peer {
	t.Helper()
	f := w.Join(rank, incarnation)
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if s := p.Stats(); s.Holds != 0 || s.Faults != 0 {
			t.Errorf("%v at its end: %+v", rank, s)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return fabric.Peer{Rank: rank, Incarnation: incarnation}
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]Options{
		"direct":  {},
		"delayed": {Seed: 1, MinDelay: 10 * time.Microsecond, MaxDelay: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(o)
			fabrictest.Run(t, fabrictest.Config{
				Fabric: w.Join(0, 1),
				Peers:  []fabric.Peer{serve(t, w, 1, 1), serve(t, w, 2, 1)},
				Restart: func(old fabric.Peer) fabric.Peer {
					return serve(t, w, old.Rank, old.Incarnation+1)
				},
			})
		})
	}
}
