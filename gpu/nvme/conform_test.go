package nvme

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/tiers"
)

// inTest has GPU files that are small against the suite's tiers, in two directories below dir.
func inTest(dir string, capacity int64) Options {
	return Options{
		Dirs: []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, Bytes: capacity, FileBytes: 16 << 10,
		StagingBytes: 64 << 20, ReadBytes: 128 << 10,
	}
}

func mustOpen(t *testing.T, o Options) *Tier {
	t.Helper()
	tr, err := Open(t.Context(), o)
	if err == nil {
		err = tr.WaitGrown(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestConformance(t *testing.T) {
	tiertest.Run(t, tiertest.Config{
		Bounded: true, Persistent: true,
		New:     func(t *testing.T, dir string, capacity int64) tiers.Tier { return mustOpen(t, inTest(dir, capacity)) },
		Corrupt: func(t *testing.T, dir string, tr tiers.Tier, id block.ID) { damage(t, tr.(*Tier), id) },
		Crash: func(t *testing.T, dir string, tr tiers.Tier) string {
			// The files as they are at this instant: what a kill -9 leaves, a moment after the last call.
			if err := tr.(*Tier).Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			next := t.TempDir()
			if err := os.CopyFS(next, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			return next
		},
		Torn: func(t *testing.T, dir string) {
			logs, err := filepath.Glob(filepath.Join(dir, "a", "index-*.log"))
			if err != nil || len(logs) != 1 {
				t.Fatal(err, logs)
			}
			text, err := os.ReadFile(logs[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(logs[0], append(text, "a record that was cut in the middle"...), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	})
}

// damage changes a byte of a block that is on the disk.
func damage(t *testing.T, tr *Tier, id block.ID) {
	t.Helper()
	if err := tr.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	tr.mu.Lock()
	b := tr.mu.blocks[id]
	size, mem := b.info.Size, b.mem
	tr.mu.Unlock()
	if mem != nil {
		t.Fatal("the block is not on the disk alone")
	}
	at := size / 2
	path, off, ok := tr.store.Locate(b.stay.part(at/tr.o.FileBytes), at%tr.o.FileBytes)
	if !ok {
		t.Fatal("the store does not have the block")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var p [1]byte
	if _, err := f.ReadAt(p[:], off); err != nil {
		t.Fatal(err)
	}
	p[0] ^= 0x10
	if _, err := f.WriteAt(p[:], off); err != nil {
		t.Fatal(err)
	}
}
