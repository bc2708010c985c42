package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// crashOptions are those of a campaign on a file system in memory, which has
// no permissions and no times.
func crashOptions(through vfs.FS, tree *vfstest.Crash) Options {
	o := options("/kv")
	o.FS = through
	o.Lstat = func(path string) (fs.FileInfo, error) { return lstat(tree, path) }
	return o
}

// info is what Lstat says of a file in memory.
type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) ModTime() time.Time { return time.Unix(0, 0) }
func (i info) IsDir() bool        { return i.dir }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}

func lstat(tree *vfstest.Crash, path string) (fs.FileInfo, error) {
	if _, err := tree.ReadDir(path); err == nil {
		return info{name: filepath.Base(path), dir: true}, nil
	}
	f, err := tree.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	return info{name: filepath.Base(path), size: size}, err
}

// once lets a hook run that uses the file system itself.
func once(fn func(vfs.Call)) func(vfs.Call) {
	var mu sync.Mutex
	return func(c vfs.Call) {
		if mu.TryLock() {
			defer mu.Unlock()
			fn(c)
		}
	}
}

// load copies a campaign of a real file system into one in memory, all durable.
func load(t *testing.T, dir string) *vfstest.Crash {
	t.Helper()
	tree := vfstest.NewCrash()
	if err := tree.Mkdir("/kv", 0o700); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		to := filepath.Join("/kv", path[len(dir):])
		switch {
		case err != nil || path == dir:
			return err
		case i.IsDir():
			return tree.Mkdir(to, 0o700)
		}
		p, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f, err := tree.Create(to, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Pwrite(p, 0)
		return errors.Join(err, f.Sync(), f.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// served is what a rank that starts on the tree can serve.
func served(t *testing.T, tree vfs.FS) recovered {
	t.Helper()
	s, err := segment.Open(segment.Options{Dir: "/kv", Rank: 9, FS: tree, CloseWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out := recovered{blocks: map[block.ID][]byte{}, names: map[string]block.ID{}}
	var found []block.Info
	err = s.Recover(func(f tiers.Entry) error {
		if !f.Info.ID.IsZero() {
			found = append(found, f.Info)
		}
		for _, n := range f.Names {
			out.names[n.Namespace+"/"+n.Key] = f.Info.ID
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range found {
		ref, err := s.Pin(i.ID)
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, i.Size)
		if err = ref.ReadInto(context.Background(), dst); err == nil {
			out.blocks[i.ID] = dst
		} else if !errors.Is(err, tiers.ErrCorrupt) {
			t.Fatal(err)
		}
		ref.Release()
	}
	return out
}

// TestPowerCutDuringRepair at each of its operations: what readers had before
// is still there, or is after the next repair, and nothing is wrong.
func TestPowerCutDuringRepair(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	path := filepath.Join(dir, sealedFile)
	flip(t, path, where(t, path, payload(0, 5000))+5)
	flip(t, filepath.Join(dir, crashedFile), 4096+17)
	tree := load(t, dir)
	points, before := 0, len(served(t, tree).blocks)
	watched := tree.Watch(once(func(c vfs.Call) {
		if c.Op == vfs.OpRead || c.Op == vfs.OpOpen || c.Op == vfs.OpSize || c.Op == vfs.OpReadDir {
			return
		}
		points++
		for seed := range uint64(6) {
			what := fmt.Sprintf("point %d, before %s %s, seed %d", points, c.Op, c.Path, seed)
			left := tree.After(vfstest.CutPower, seed)
			got := served(t, left)
			if wantBounded(t, what, d, got); len(got.blocks) < before { // a withdrawal may be hidden by the damage
				t.Fatalf("%s: %d blocks, %d were there before the repair", what, len(got.blocks), before)
			}
			r := check(t, crashOptions(left, left), CheckOptions{Payloads: true})
			if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left > 0 {
				t.Fatalf("%s: %v, %+v", what, err, r.Repairs)
			}
			if r := check(t, crashOptions(left, left), CheckOptions{Payloads: true}); !r.Clean {
				t.Fatalf("%s: %+v", what, problems(r))
			}
			if blocks, _ := wantRight(t, what, d, served(t, left)); blocks > 2 {
				t.Fatalf("%s: %d blocks are lost by two flips", what, blocks)
			}
		}
	}))
	r := check(t, crashOptions(tree, tree), CheckOptions{Payloads: true})
	r.c.o.FS = watched
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left > 0 {
		t.Fatalf("%v, %+v", err, r.Repairs)
	}
	if points < 10 {
		t.Errorf("%d points", points)
	}
	t.Logf("%d points", points)
}

// TestPowerCutDuringImport at each of its operations: nothing is wrong, and
// what was reported as imported before is there.
func TestPowerCutDuringImport(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	stream, x := export(t, options(dir), ExportOptions{})
	tree := vfstest.NewCrash()
	points, durable := 0, 0
	watched := tree.Watch(once(func(c vfs.Call) {
		points++
		for seed := range uint64(6) {
			what := fmt.Sprintf("point %d, before %s %s, seed %d", points, c.Op, c.Path, seed)
			left := tree.After(vfstest.CutPower, seed)
			if _, err := left.ReadDir("/kv"); err != nil {
				continue
			}
			got := served(t, left)
			wantBounded(t, what, d, got)
			if len(got.blocks) < durable {
				t.Fatalf("%s: %d blocks, %d were there for good", what, len(got.blocks), durable)
			}
		}
		if c.Op == vfs.OpClose { // behind the last fsync of a segment
			durable = len(served(t, tree.After(vfstest.CutPower, 99)).blocks)
		}
	}))
	got, err := Import(t.Context(), crashOptions(watched, tree), bytes.NewReader(stream), ImportOptions{})
	if err != nil || got.Blocks != x.Blocks {
		t.Fatalf("%v, %+v", err, got)
	}
	if all := served(t, tree.After(vfstest.CutPower, 7)); len(all.blocks) != len(d.blocks) {
		t.Errorf("%d of %d imported blocks outlive a power cut", len(all.blocks), len(d.blocks))
	}
	t.Logf("%d points", points)
}
