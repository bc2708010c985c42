package testdevice

import (
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/tiers"
)

func TestConformance(t *testing.T) {
	tiertest.Run(t, tiertest.Config{
		Bounded: true,
		New:     func(_ *testing.T, _ string, capacity int64) tiers.Tier { return New(capacity) },
		Corrupt: func(_ *testing.T, _ string, tr tiers.Tier, id block.ID) { _ = tr.(*Tier).Corrupt(id) },
	})
}
