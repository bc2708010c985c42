package host

import (
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/tiers"
)

func TestConformance(t *testing.T) {
	tiertest.Run(t, tiertest.Config{
		Bounded: true,
		New: func(t *testing.T, _ string, capacity int64) tiers.Tier {
			tr, err := Open(capacity)
			if err != nil {
				t.Fatal(err)
			}
			return tr
		},
		Corrupt: func(t *testing.T, _ string, tr tiers.Tier, id block.ID) {
			p, err := tr.Pin(id)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			p.Bytes()[p.Info().Size/2] ^= 0x10
		},
	})
}
