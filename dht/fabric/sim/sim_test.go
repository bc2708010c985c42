package sim

import (
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

func TestConformance(t *testing.T) {
	for name, o := range map[string]Options{
		"direct":  {},
		"delayed": {Seed: 1, MinDelay: 10 * time.Microsecond, MaxDelay: 200 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(o)
			fabrictest.Run(t, fabrictest.Config{
				Fabric: w.Join(0, 1),
				Peers:  []fabric.Peer{fabrictest.Serve(t, w.Join(1, 1), 1), fabrictest.Serve(t, w.Join(2, 1), 1)},
				Restart: func(old fabric.Peer) fabric.Peer {
					return fabrictest.Serve(t, w.Join(old.Rank, old.Incarnation+1), old.Incarnation+1)
				},
			})
		})
	}
}
