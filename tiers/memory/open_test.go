package memory

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/testneed"
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

func pattern(seed byte, size int) []byte { return noise.Bytes(uint64(seed), size) }

func testItem(seed byte, size int) tiers.Item {
	p := pattern(seed, size)
	return tiers.Item{
		Info:  block.Info{ID: block.Sum(block.Bits128, p), Size: int64(size), CRC: block.CRC(p)},
		Names: []block.Name{{Namespace: "ns", Key: string(rune('a' + seed)), Seq: uint64(seed) + 1}},
		Data:  p,
	}
}

// TestOpenOverWhatIsThere: nothing that lies where an arena is to be keeps a tier
// from opening, blocks that can be kept are kept, and what is not the tier's stays
// as it is.
func TestOpenOverWhatIsThere(t *testing.T) {
	const size = MinBytes
	arenaWith := func(items ...tiers.Item) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			tr := openAll(t, path, 2*size)
			if err := tr.Put(t.Context(), items...); err != nil {
				t.Fatal(err)
			}
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	write := func(off int64, b ...byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			arenaWith(testItem(1, 5000))(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(b, off); err != nil {
				t.Fatal(err)
			}
		}
	}
	otherVersion := func() []byte {
		page := geometryOf(2 * size).super()
		le.PutUint32(page[8:], superVersion+1)
		le.PutUint32(page[offSuperCRC:], block.CRC(page[:offSuperCRC]))
		return page[:]
	}
	text := func(s string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	truncated := func(to int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			arenaWith(testItem(1, 5000))(t, path)
			if err := os.Truncate(path, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(f func(path string) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := f(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	const (
		kept    = 1 << iota // the block is there
		given               // the file is the tier's, what it held is not
		passed              // the file is as it was, another serves
		resized             // the file has the size that is asked for
	)
	for name, c := range map[string]struct {
		before func(t *testing.T, path string)
		size   int64
		want   int
	}{
		"blocks, same size":          {arenaWith(testItem(1, 5000)), 2 * size, kept | resized},
		"blocks, larger":             {arenaWith(testItem(1, 5000)), 4 * size, kept | resized},
		"blocks, smaller":            {arenaWith(testItem(1, 5000)), size, kept | resized},
		"blocks, too small for them": {arenaWith(testItem(2, 4<<20), testItem(1, 5000)), size, kept},
		"blocks, more than there is": {arenaWith(testItem(1, 5000)), math.MaxInt64 / 2, kept},
		"no blocks, larger":          {arenaWith(), 4 * size, resized},
		"no blocks, smaller":         {arenaWith(), size, resized},
		"other version":              {write(0, otherVersion()...), 2 * size, passed | resized},
		"other version, larger":      {write(0, otherVersion()...), 4 * size, passed | resized},
		"version damaged":            {write(8, 2), 2 * size, given | resized},
		"magic damaged":              {write(0, 0), 2 * size, given | resized},
		"magic damaged, larger":      {write(0, 0), 4 * size, given | resized},
		"size damaged":               {write(offFileSize, 7, 7, 7), 4 * size, given | resized},
		"first page overwritten":     {write(0, bytes.Repeat([]byte("x"), 4096)...), 2 * size, given | resized},
		"cut off":                    {truncated(size), 2 * size, given | resized},
		"cut off to a page":          {truncated(4096), 2 * size, given | resized},
		"cut off to nothing":         {truncated(0), 2 * size, resized},
		"longer":                     {truncated(3 * size), 2 * size, given | resized},
		"somebody's text":            {text("precious"), size, passed | resized},
		"empty file":                 {text(""), size, resized},
		"only zeros":                 {text(strings.Repeat("\x00", 10000)), size, resized},
		"a directory":                {run(func(p string) error { return os.Mkdir(p, 0o700) }), size, passed | resized},
		"a symbolic link":            {run(func(p string) error { return os.Symlink(p+"-elsewhere", p) }), size, passed | resized},
		"a pipe":                     {run(func(p string) error { return unix.Mkfifo(p, 0o600) }), size, passed | resized},
		"open to others":             {run(func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o644)) }), size, passed | resized},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.arena")
			c.before(t, path)
			content := func() (p []byte) {
				if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
					p, _ = os.ReadFile(path)
				}
				return p
			}
			before := content()
			tr, err := Open(Options{Name: "test", Path: path, Bytes: c.size})
			if err != nil {
				t.Fatal(err)
			}
			defer tr.Close()
			o := tr.Opened()
			t.Logf("%+v", o)
			if got := o.Size == c.size; got != (c.want&resized != 0) {
				t.Errorf("%d bytes of %d", o.Size, c.size)
			} else if !got && o.NotResized == nil {
				t.Error("nothing says why it has not the size asked for")
			}
			if given := c.want&given != 0; o.GivenUp > 0 != given {
				t.Errorf("%d bytes are said to be given up", o.GivenUp)
			}
			if p, err := tr.Pin(testItem(1, 5000).Info.ID); c.want&kept != 0 && err != nil {
				t.Error(err)
			} else if err == nil {
				if !bytes.Equal(p.Bytes(), pattern(1, 5000)) {
					t.Error("the block has wrong bytes")
				}
				p.Release()
			}
			if err := tr.Put(t.Context(), testItem(9, 3000)); err != nil {
				t.Error(err)
			}
			if c.want&passed == 0 {
				if o.Path != path || len(o.Passed) > 0 {
					t.Errorf("it uses %s, for %v", o.Path, o.Passed)
				}
				return
			}
			if o.Path != path+".1" || len(o.Passed) != 1 || !strings.Contains(o.Passed[0].Error(), path) || !strings.Contains(o.Passed[0].Error(), "--shm-path") {
				t.Errorf("it uses %s, for %v", o.Path, o.Passed)
			}
			if !bytes.Equal(before, content()) {
				t.Error("the file changed")
			}
		})
	}
}

// TestArenaOfAnotherUser: a file that somebody else put there first costs nothing
// but the name.
func TestArenaOfAnotherUser(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "the right to give files away", "run this test as root")
	path := filepath.Join(t.TempDir(), "a.arena")
	if err := errors.Join(os.WriteFile(path, []byte("mine"), 0o600), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	tr := openAll(t, path, MinBytes)
	if o := tr.Opened(); o.Path != path+".1" || len(o.Passed) != 1 || !errors.Is(o.Passed[0], arena.ErrUnsafe) {
		t.Errorf("%+v", o)
	}
	if text, err := os.ReadFile(path); string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestArenaInUse: a second tier finds the first one's arena locked, whatever size
// it asks for.
func TestArenaInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, MinBytes)
	if err := tr.Put(t.Context(), testItem(1, 5000)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{MinBytes, 2 * MinBytes} {
		if _, err := Open(Options{Name: "test", Path: path, Bytes: size}); !errors.Is(err, arena.ErrInUse) {
			t.Errorf("error %v", err)
		}
	}
	if !tr.FileLinked() || tr.Check() != nil {
		t.Error("the first one's file changed")
	}
}

// TestResizedKeepsNames: all of a block's names, and what was put last, are in the
// arena of another size, and nothing of the move is left over.
func TestResizedKeepsNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, 2*MinBytes)
	want := map[block.ID]tiers.Item{}
	for i := range byte(50) {
		it := testItem(i, 100+700*int(i))
		it.Names = append(it.Names, block.Name{Key: "second of " + it.Names[0].Key, Parent: "p", Seq: 1000 + uint64(i), Depth: 3, Prefix: true})
		if err := tr.Put(t.Context(), it); err != nil {
			t.Fatal(err)
		}
		want[it.Info.ID] = it
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte("left by a kill"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := openAll(t, path, 6*MinBytes)
	if o := next.Opened(); o.Resized != 2*MinBytes || o.Made {
		t.Errorf("%+v", o)
	}
	err := next.Recover(func(e tiers.Entry) error {
		it := want[e.Info.ID]
		delete(want, e.Info.ID)
		slices.SortFunc(e.Names, func(x, y block.Name) int { return cmp.Compare(x.Seq, y.Seq) })
		if len(e.Names) != 2 || !sameName(e.Names[0], it.Names[0]) || !sameName(e.Names[1], it.Names[1]) {
			return fmt.Errorf("names %+v of %+v", e.Names, it.Names)
		}
		return nil
	})
	if err != nil || len(want) > 0 {
		t.Errorf("%v; %d blocks are missing", err, len(want))
	}
	left, err := filepath.Glob(path + "?*")
	if err != nil || len(left) > 0 || !next.FileLinked() {
		t.Errorf("%v, %v is left", left, err)
	}
}

// TestTruncationIsNoticed: also one after which the file has its size again.
func TestTruncationIsNoticed(t *testing.T) {
	for name, again := range map[string]bool{"cut off": false, "cut off and extended": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.arena")
			tr := openAll(t, path, MinBytes)
			if err := tr.Check(); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			if again {
				if err := os.Truncate(path, MinBytes); err != nil {
					t.Fatal(err)
				}
			}
			if err := tr.Check(); !errors.Is(err, arena.ErrLost) {
				t.Errorf("error %v", err)
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
