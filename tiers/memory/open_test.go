package memory

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// openAll opens an arena file and waits until all of it is ready.
func openAll(t *testing.T, path string, size int64) *Tier {
	t.Helper()
	tr, err := Open(Options{Name: "test", Path: path, Bytes: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	if err := tr.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return tr
}

func pattern(seed byte, size int) []byte {
	p := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func testItem(seed byte, size int) tiers.Item {
	p := pattern(seed, size)
	return tiers.Item{
		Info:  block.Info{ID: block.Sum(block.Bits128, p), Size: int64(size), CRC: block.CRC(p)},
		Names: []block.Name{{Namespace: "ns", Key: string(rune('a' + seed)), Seq: uint64(seed) + 1}},
		Data:  p,
	}
}

// TestOpenOverWhatIsThere: whatever a file holds survives an Open that cannot
// use it.
func TestOpenOverWhatIsThere(t *testing.T) {
	const size = MinBytes
	arenaWith := func(items ...tiers.Item) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			tr := openAll(t, path, size)
			if err := tr.Put(t.Context(), items...); err != nil {
				t.Fatal(err)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(off int64, b byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			arenaWith(testItem(1, 5000))(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte{b}, off); err != nil {
				t.Fatal(err)
			}
		}
	}
	text := func(s string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		before func(t *testing.T, path string)
		size   int64
		want   error
		words  []string
	}{
		"blocks, larger":             {arenaWith(testItem(1, 5000)), 2 * size, ErrOtherSize, []string{"4194304", "8388608", "--shm-bytes 4194304", "remove"}},
		"blocks, more than there is": {arenaWith(testItem(1, 5000)), math.MaxInt64 / 2, ErrOtherSize, nil},
		"blocks, same size":          {arenaWith(testItem(1, 5000)), size, nil, nil},
		"no blocks, larger":          {arenaWith(), 2 * size, nil, nil},
		"no blocks, too large":       {arenaWith(), math.MaxInt64 / 2, arena.ErrNoShare, []string{"--shm-bytes"}},
		"other version":              {change(8, 2), size, ErrOtherLayout, []string{"remove", "--shm-path"}},
		"other version, larger":      {change(8, 2), 2 * size, ErrOtherLayout, nil},
		"magic damaged":              {change(0, 0), size, ErrOtherLayout, nil},
		"somebody's text":            {text("precious"), size, ErrOtherLayout, []string{"remove", "--shm-path"}},
		"empty file":                 {text(""), size, nil, nil},
		"only zeros":                 {text(strings.Repeat("\x00", 10000)), size, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.arena")
			c.before(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			tr, err := Open(Options{Name: "test", Path: path, Bytes: c.size})
			if !errors.Is(err, c.want) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if err == nil {
				if err := tr.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			for _, w := range append(c.words, path) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in %q", w, err)
				}
			}
			after, readErr := os.ReadFile(path)
			if readErr != nil || !bytes.Equal(before, after) {
				t.Errorf("the file changed: %v", readErr)
			}
		})
	}
}

// TestUnfinishedSuperblockIsNew: a process may die before the magic is written.
func TestUnfinishedSuperblockIsNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	page := geometryOf(MinBytes).super()
	clear(page[:len(superMagic)])
	if err := os.WriteFile(path, append(page[:], make([]byte, MinBytes-len(page))...), 0o600); err != nil {
		t.Fatal(err)
	}
	tr := openAll(t, path, MinBytes)
	if err := tr.Put(t.Context(), testItem(1, 3000)); err != nil {
		t.Error(err)
	}
}
