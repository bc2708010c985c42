package shm

import (
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/tiers"
)

func TestConformance(t *testing.T) {
	tiertest.Run(t, tiertest.Config{
		Persistent: true,
		Bounded:    true,
		New: func(t *testing.T, dir string, capacity int64) tiers.Tier {
			tr, err := Open(filepath.Join(dir, "test.arena"), capacity)
			if err != nil {
				t.Fatal(err)
			}
			return tr
		},
		Crash: func(t *testing.T, dir string, _ tiers.Tier) string {
			// The file as it is at this instant: what a kill -9 leaves.
			b, err := os.ReadFile(filepath.Join(dir, "test.arena"))
			if err != nil {
				t.Fatal(err)
			}
			next := t.TempDir()
			if err := os.WriteFile(filepath.Join(next, "test.arena"), b, 0o600); err != nil {
				t.Fatal(err)
			}
			return next
		},
		Corrupt: func(t *testing.T, dir string, tr tiers.Tier, id block.ID) {
			p, err := tr.Pin(id)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			f, err := os.OpenFile(filepath.Join(dir, "test.arena"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var b [1]byte
			off := p.Offset() + p.Info().Size/2
			if _, err := f.ReadAt(b[:], off); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := f.WriteAt(b[:], off); err != nil {
				t.Fatal(err)
			}
		},
	})
}
