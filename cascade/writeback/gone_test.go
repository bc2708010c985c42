package writeback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/lustre"
)

// TestRemovedFilesAreNoticed: the files of the cold tier are removed under a rank.
// What is in memory is written again, at the next look and by a drain; what is
// nowhere any more is a miss.
func TestRemovedFilesAreNoticed(t *testing.T) {
	for name, look := range map[string]func(*parttest.Rank, *Writer) int{
		"look": func(r *parttest.Rank, w *Writer) int {
			w.restoreGone(t.Context())
			return r.Cold.Files.Usage().Blocks
		},
		"drain": func(_ *parttest.Rank, w *Writer) int {
			n, err := w.Drain(t.Context())
			if err != nil {
				t.Error(err)
			}
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kv")
			tier, err := lustre.Open(lustre.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tier.Close() })
			r := parttest.New(t, func(o *residency.Options) { o.Cold = tier })
			w := New(r.State, eviction.New(r.State), r.Seen)
			const n, inMemory, size = 40, 15, 500_000
			var keys []string
			for i := range n {
				keys = append(keys, fmt.Sprint(i))
				if p := parttest.Data(uint64(i), size); i < n-inMemory {
					r.PutCold(parttest.Name(keys[i]), p)
				} else {
					r.Put(parttest.Name(keys[i]), p)
				}
			}
			if _, err := w.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := tier.Usage().Blocks; got != n {
				t.Fatalf("%d blocks in the cold tier, want %d", got, n)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if got := look(r, w); got != inMemory {
				t.Errorf("%d blocks are there again, want the %d of %d in memory", got, inMemory, n)
			}
			found := r.Has(keys...)
			for _, k := range found {
				b := r.Block(k)
				pin, err := tier.Pin(b.Info.ID)
				if err != nil {
					t.Errorf("block %s: %v", k, err)
					continue
				}
				again := make([]byte, size)
				v := r.Pin(k)
				if err := pin.ReadInto(t.Context(), again); err != nil || !bytes.Equal(again, v.Bytes()) {
					t.Errorf("block %s: %v", k, err)
				}
				v.Release()
				pin.Release()
			}
			if dirty := r.Count.Stats.DirtyBlocks; len(found) != inMemory || dirty != 0 || tier.Usage().Blocks != inMemory {
				t.Errorf("%d blocks are found, %d dirty, %d in the cold tier; want %d", len(found), dirty, tier.Usage().Blocks, inMemory)
			}
			if files, _ := filepath.Glob(filepath.Join(dir, "*", "agg_*.bin")); len(files) == 0 {
				t.Error("there are no files")
			}
			if !r.Log.Has("somebody has removed files") {
				t.Error("nobody is told")
			}
			parttest.Check(t, r.State)
		})
	}
}

// While somebody goes on to remove what is written a drain gives up.
func TestFilesThatAreRemovedAgainAndAgain(t *testing.T) {
	r, files, w := newWriter(t)
	b := r.Put(parttest.Name("a"), parttest.Data(1, size))
	lossy := &losing{Files: files, t: t}
	r.Cold.Files = lossy
	if n, err := w.Drain(t.Context()); n != 0 || !errors.Is(err, errGone) || lossy.times != drainRounds {
		t.Errorf("%d blocks, %v, lost %d times", n, err, lossy.times)
	}
	if !b.CountedDirty || r.Block("a") != b {
		t.Error("what is in memory is not dirty any more")
	}
}

// Files that copies in memory are of go in each round, as when low space takes them. Nobody removed
// what this rank wrote, and nobody is blamed; what is not written is dirty.
func TestFilesOfCopiesGoOnAndOn(t *testing.T) {
	r, files, w := newWriter(t)
	leaves := &leaving{Files: files, r: r}
	r.Cold.Files = leaves
	leaves.copyOne()
	n, err := w.Drain(t.Context())
	if n != leftRounds || !errors.Is(err, errDrain) || !errors.Is(err, errLeft) || errors.Is(err, errGone) {
		t.Errorf("%d blocks: %v", n, err)
	}
	if dirty := r.Count.Stats.DirtyBlocks; r.Log.Has("somebody") || dirty != 1 {
		t.Errorf("%d blocks are dirty; logged: %s", dirty, &r.Log)
	}
	leaves.ends = true
	if n, err := w.Drain(t.Context()); n != 2 || err != nil { // with what was read last
		t.Errorf("the next drain: %d blocks, %v", n, err)
	}
}

// leaving is a cold tier beside which the files of copies go, each when the next copy is read.
type leaving struct {
	*parttest.Files
	r    *parttest.Rank
	n    int
	ends bool
}

// copyOne has a block in memory be a copy of what is in a file of another rank.
func (l *leaving) copyOne() {
	l.n++
	b := l.r.Put(parttest.Name(fmt.Sprint(l.n)), parttest.Data(uint64(l.n), size))
	l.r.Mu.Lock()
	defer l.r.Mu.Unlock()
	b.From = &directory.Segment{Path: fmt.Sprint(l.n)}
	l.r.PlacementChangedLocked(b)
}

func (l *leaving) Gone(_ context.Context, paths ...string) ([]string, error) {
	if !l.ends {
		l.copyOne()
	}
	return paths, nil
}

// losing is a cold tier that loses whatever it was given last.
type losing struct {
	*parttest.Files
	t     *testing.T
	times int
}

func (l *losing) Missing(ctx context.Context) ([]block.ID, error) {
	for _, ids := range l.Batches() {
		l.times++
		l.Lose(l.t, ids...)
	}
	return l.Files.Missing(ctx)
}
