package index

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	files "cascadekv/internal/vfs"
)

// script is batches that have been put one after the other, and what an index
// is after each number of them.
type script struct {
	batches []Batch
	states  []*model
}

func newScript(seed uint64, n int) *script {
	w := &world{r: rand.New(rand.NewPCG(seed, 2)), m: newModel()}
	s := &script{}
	for i := 0; i <= n; i++ {
		m := newModel()
		for _, b := range s.batches {
			m.put(b)
		}
		s.states = append(s.states, m)
		b := w.batch()
		b.Mark = uint64(i + 1)
		s.batches = append(s.batches, b)
	}
	return s
}

// prefix is how many batches an index holds, by its marks; none when it broke.
func prefix(t *testing.T, x *Index) int {
	t.Helper()
	segments, err := x.Segments()
	if err != nil && !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	p := 0
	for _, s := range segments {
		p = max(p, int(s.Mark))
	}
	return p
}

// holds fails the test unless the index is what a prefix of the script makes it.
func (s *script) holds(t *testing.T, x *Index, at int) {
	t.Helper()
	w := &world{t: t, r: rand.New(rand.NewPCG(1, 1)), x: x, m: s.states[at]}
	w.compare()
}

// After a crash the index is what it was after some of the last batches, no
// fewer than Sync promised, and its marks tell how many.
func TestCrashKeepsAPrefix(t *testing.T) {
	const batches = 60
	for seed := range uint64(4) {
		for _, percent := range []int{0, 50, 100} {
			t.Run(fmt.Sprintf("%d-%d", seed, percent), func(t *testing.T) {
				s := newScript(seed, batches)
				r := rand.New(rand.NewPCG(seed, uint64(percent)))
				o, fs := memOptions(), vfs.NewCrashableMem()
				o.fs, o.MemTableBytes = fs, 32<<10
				o.Now = func() time.Time { return s.states[0].now }
				x := open(t, o)
				synced := 0
				for i, b := range s.batches[:batches] {
					put(t, x, b)
					if r.IntN(8) == 0 {
						if err := x.Sync(context.Background()); err != nil {
							t.Fatal(err)
						}
						synced = i + 1
					}
					if r.IntN(6) == 0 {
						after := o
						after.fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
						s.recovers(t, after, synced, i+1)
					}
				}
			})
		}
	}
}

func (s *script) recovers(t *testing.T, o Options, least, most int) {
	t.Helper()
	x := open(t, o)
	defer x.Close()
	if err := x.Emptied(); err != nil && least > 0 {
		t.Fatalf("emptied though %d batches were durable: %v", least, err)
	}
	p := prefix(t, x)
	if p < least || p > most {
		t.Fatalf("%d batches after a crash; %d were durable, %d put", p, least, most)
	}
	s.holds(t, x, p)
	for _, b := range s.batches[p:most] { // what recovery would do
		put(t, x, b)
	}
	s.holds(t, x, most)
}

// filled is a file system with an index that holds the whole script, closed.
func (s *script) filled(t *testing.T) (Options, *vfs.MemFS) {
	t.Helper()
	o, fs := memOptions(), vfs.NewCrashableMem()
	o.fs, o.MemTableBytes = fs, 32<<10
	o.Now = func() time.Time { return s.states[0].now }
	x := open(t, o)
	for i, b := range s.batches {
		put(t, x, b)
		if i%10 == 0 {
			if err := x.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return o, fs
}

// A damaged index is emptied, or breaks when the damage is met; it never says
// what is wrong.
func TestDamage(t *testing.T) {
	s := newScript(9, 40)
	s.batches = s.batches[:40]
	o, fs := s.filled(t)
	damages := map[string]func(p []byte, r *rand.Rand) []byte{
		"empty":   func([]byte, *rand.Rand) []byte { return nil },
		"halved":  func(p []byte, _ *rand.Rand) []byte { return p[:len(p)/2] },
		"garbage": func(p []byte, r *rand.Rand) []byte { return garbage(len(p), r) },
		"a bit":   func(p []byte, r *rand.Rand) []byte { return flip(p, r) },
		"longer":  func(p []byte, r *rand.Rand) []byte { return append(p, garbage(100, r)...) },
		"gone":    nil,
	}
	base := fs.PathJoin(o.Dir, "base-1")
	names, err := fs.List(base)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{fs.PathJoin(o.Dir, headerName)}
	for _, name := range names {
		files = append(files, fs.PathJoin(base, name))
	}
	for what, damage := range damages {
		for i, file := range files {
			t.Run(what+"/"+fs.PathBase(file), func(t *testing.T) {
				o := o
				copied := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
				o.fs = copied
				harm(t, copied, file, damage, rand.New(rand.NewPCG(uint64(i), 7)))
				x := open(t, o)
				defer x.Close()
				s.neverWrong(t, x)
			})
		}
	}
}

func harm(t *testing.T, fs vfs.FS, file string, damage func([]byte, *rand.Rand) []byte, r *rand.Rand) {
	t.Helper()
	p, err := readAll(fs, file)
	if err == nil {
		err = fs.Remove(file)
	}
	if err == nil && damage != nil {
		err = writeAll(fs, file, damage(p, r))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// neverWrong asks for everything. All that is found must be right as of the
// batches that the marks tell of.
func (s *script) neverWrong(t *testing.T, x *Index) {
	t.Helper()
	m := s.states[prefix(t, x)]
	for n := range uint64(worldBlocks) {
		want, ok := m.get(id(n))
		if got, err := x.Get(id(n)); err == nil && (!ok || got != want) {
			t.Fatalf("get %d: %+v, want %+v, %v", n, got, want, ok)
		} else if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("get %d: %v is no miss", n, err)
		}
	}
	for n := range uint64(worldNames) {
		want, _, ok := m.find(key(n))
		if got, _, err := x.Find(key(n)); err == nil && (!ok || got != want) {
			t.Fatalf("find %d: %+v, want %+v, %v", n, got, want, ok)
		} else if err != nil && !errors.Is(err, ErrNotFound) {
			t.Fatalf("find %d: %v is no miss", n, err)
		}
		path := keys((&world{}).path(n)...)
		if got, err := leading(x, path); got > m.probe(path) || err != nil && !errors.Is(err, ErrBroken) {
			t.Fatalf("probe %d: %d, %v; want %d at most", n, got, err, m.probe(path))
		}
	}
	if err := x.Rebuild(context.Background(), each(s.batches...)); err != nil {
		t.Fatal("rebuild: ", err)
	}
	if got := prefix(t, x); got != len(s.batches) {
		t.Fatalf("%d batches after the rebuild", got)
	}
}

// An index of another campaign or format is emptied, and nothing but the index
// is touched.
func TestOthersIndex(t *testing.T) {
	s := newScript(3, 10)
	o, fs := s.filled(t)
	if err := writeAll(fs, fs.PathJoin(o.Dir, "mine.txt"), []byte("keep")); err != nil {
		t.Fatal(err)
	}
	other := o
	other.Campaign = "another"
	x := open(t, other)
	if err := x.Emptied(); err == nil || !strings.Contains(err.Error(), "campaign") {
		t.Errorf("emptied: %v", err)
	}
	if p := prefix(t, x); p != 0 {
		t.Errorf("%d batches of another campaign", p)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := readAll(fs, fs.PathJoin(o.Dir, headerName))
	if err != nil {
		t.Fatal(err)
	}
	p[8] = version + 1
	if err := writeAll(fs, fs.PathJoin(o.Dir, headerName), sealHeader(p)); err != nil {
		t.Fatal(err)
	}
	x = open(t, other)
	if err := x.Emptied(); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("emptied: %v", err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List(o.Dir)
	slices.Sort(names)
	if err != nil || strings.Join(names, " ") != "INDEX LOCK base-3 mine.txt" {
		t.Errorf("left: %v, %v", names, err)
	}
}

func TestSharedFileSystemsAreRefused(t *testing.T) {
	for _, magic := range shared {
		name := files.TypeName(uint32(magic))
		if name == "" {
			t.Fatalf("a file system of type %#x has no name", magic)
		}
		o := Options{Dir: "/idx/a/b", fs: vfs.NewMem(), fsType: func(dir string) (int64, error) {
			if dir != "/" {
				return 0, os.ErrNotExist
			}
			return magic, nil
		}}
		if _, err := Open(o); !errors.Is(err, ErrSharedFS) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(Options{Dir: "/idx", fs: vfs.NewMem(), fsType: func(string) (int64, error) { return 0, os.ErrPermission }}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	if x, err := Open(Options{Dir: t.TempDir()}); err != nil {
		t.Error("a real folder: ", err)
	} else if err := x.Close(); err != nil {
		t.Error(err)
	}
}
