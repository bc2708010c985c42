package nvme

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestHangingDisk: while the disk does not answer, calls without a context return, those with one end with it, and
// what the disk may still touch stays in use.
func TestHangingDisk(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS, o.closePatience, o.readPatience = fs, 20*time.Millisecond, time.Millisecond
	o.StagingBytes, o.ReadBytes = 8*unit, unit
	tr := opened(t, o)
	old, other := item(1, 5*unit+7, name("old", 1)), item(2, 100)
	noError(t, tr.Put(t.Context(), old, other))
	hang := make(chan struct{})
	for _, op := range []vfs.Op{vfs.OpRead, vfs.OpWrite, vfs.OpSync} {
		fs.Add(vfstest.Rule{Op: op, Block: hang})
	}
	_, err := read(fs.UntilHung(t.Context(), 1), tr, old)
	wantErr(t, "a read", err, tiers.ErrUnavailable, context.Canceled)
	wantErr(t, "Evict of a block that the disk is asked for", tr.Evict(old.Info.ID), tiers.ErrPinned)
	p, err := tr.Pin(other.Info.ID)
	noError(t, err)
	_, err = p.CRC(0, 0, 100)
	wantErr(t, "CRC without a buffer", err, tiers.ErrUnavailable)
	p.Release()

	var held []tiers.Item
	for i := range 9 {
		it := item(uint64(10+i), unit+1)
		if err = commit(tr, it); err != nil {
			break
		}
		held = append(held, it)
	}
	wantErr(t, "more than staging holds", err, tiers.ErrUnavailable, tiers.ErrShort)
	if errors.Is(err, tiers.ErrFull) || len(held) != 4 {
		t.Errorf("%d blocks were taken, then %v", len(held), err)
	}
	wantBlocks(t, tr, held...)
	noError(t, tr.Link(held[0].Info.ID, name("new", 5)), tr.Unlink(old.Info.ID, name("old", 6)), tr.Evict(held[3].Info.ID), tr.Evict(other.Info.ID),
		tr.Rename(held[1].Info.ID, block.Provisional(9)), tr.Rename(block.Provisional(9), held[1].Info.ID), tr.SetLayout("ns", 1, block.Layout{Tokens: 4}))
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	wantErr(t, "Put of more than staging has", tr.Put(t.Context(), item(3, 10*unit)), tiers.ErrTooLarge)
	wantErr(t, "Put", tr.Put(soon, item(3, 4*unit)), tiers.ErrUnavailable, context.DeadlineExceeded)
	wantErr(t, "Sync", tr.Sync(soon), tiers.ErrUnavailable, context.DeadlineExceeded)
	if h := tr.Stats().Health; h.Hanging != 1 || h.Reads.Unanswered != 2 || h.Refused == 0 {
		t.Errorf("%+v", h)
	}
	tr.mu.Lock()
	tr.mu.since = time.Time{}
	tr.mu.Unlock()
	if h := tr.Stats().Health; h.Hanging != 2 {
		t.Errorf("the writer hangs as well: %+v", h)
	}
	err = tr.Close()
	wantErr(t, "Close", err, tiers.ErrPinned, tiers.ErrUnavailable)
	_, err = Open(t.Context(), o)
	wantErr(t, "a second one while the disk may still write", err, tiers.ErrUnavailable)
	fs.Clear()
	close(hang)
	tr = unlocked(t, o)
	wantBlocks(t, tr, old)
	for _, it := range held[:3] { // all or none of it
		if got, err := read(t.Context(), tr, it); err == nil && string(got) != string(it.Data) || err != nil && !errors.Is(err, tiers.ErrNotFound) {
			t.Errorf("%v", err)
		}
	}
}

// TestHangingOpen: Open ends with its context, and gives all back once the disk has answered.
func TestHangingOpen(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpMkdir, vfs.OpReadDir, vfs.OpOpen, vfs.OpRead} {
		t.Run(string(op), func(t *testing.T) {
			disk, o := rig(t)
			tr := opened(t, o)
			it := item(1, 100)
			noError(t, tr.Put(t.Context(), it), tr.Close())
			fs := vfstest.NewFault(disk)
			o.FS = fs
			hang := make(chan struct{})
			fs.Add(vfstest.Rule{Op: op, Block: hang})
			failed := make(chan error, 1)
			go func() {
				_, err := Open(fs.UntilHung(t.Context(), 1), o)
				failed <- err
			}()
			select {
			case err := <-failed:
				wantErr(t, "Open", err, tiers.ErrUnavailable, context.Canceled)
			case <-time.After(time.Minute):
				t.Error("Open waits for the disk")
			}
			fs.Clear()
			close(hang)
			wantBlocks(t, unlocked(t, o), it)
		})
	}
}

// TestAnswersInTheEnd: a disk that hung for a while has lost nothing.
func TestAnswersInTheEnd(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	tr := opened(t, o)
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Block: hang})
	a, b, gone := item(1, 3*unit, name("a", 1)), item(2, unit-1, name("b", 2)), item(3, 5, name("gone", 3))
	noError(t, commit(tr, a), commit(tr, gone))
	<-fs.UntilHung(t.Context(), 1).Done()
	noError(t, commit(tr, b), tr.Evict(gone.Info.ID))
	full := []tiers.Item{}
	for i := 0; ; i++ { // room is what is not in use, whatever the disk does
		it := item(uint64(100+i), unit)
		err := commit(tr, it)
		if errors.Is(err, tiers.ErrFull) {
			break
		}
		if errors.Is(err, tiers.ErrShort) { // gone still has memory
			noError(t, tr.Evict(full[0].Info.ID))
			full = full[1:]
			break
		}
		noError(t, err)
		full = append(full, it)
	}
	fs.Clear()
	close(hang)
	noError(t, tr.Sync(t.Context()), tr.Close())
	tr = opened(t, o)
	wantBlocks(t, tr, append(full, a, b)...)
	wantMiss(t, tr, gone)
	if got := recoveredNames(t, tr); len(got) != 2 || got["a"] != a.Info.ID || got["b"] != b.Info.ID {
		t.Errorf("names %v", got)
	}
}

// TestFailedWrites: a block whose write fails is gone, for a while no others are taken, and then all is as before.
func TestFailedWrites(t *testing.T) {
	for what, c := range map[string]struct {
		rule vfstest.Rule
		want error
	}{
		"write":             {vfstest.Rule{Op: vfs.OpWrite, Path: poolPath, Count: 1, Bytes: 100, Err: vfs.ErrIO}, tiers.ErrUnavailable},
		"fsync":             {vfstest.Rule{Op: vfs.OpSync, Path: poolPath, Count: 1, Err: vfs.ErrIO}, tiers.ErrUnavailable},
		"write of a log":    {vfstest.Rule{Op: vfs.OpWrite, Path: "index-", Count: 2, Bytes: 30, Err: vfs.ErrIO}, tiers.ErrUnavailable},
		"fsync of a log":    {vfstest.Rule{Op: vfs.OpSync, Path: "index-", Err: vfs.ErrIO}, tiers.ErrUnavailable},
		"no room for a log": {vfstest.Rule{Op: vfs.OpWrite, Path: "index-", Count: 4, Bytes: 30, Err: vfs.ErrNoSpace}, tiers.ErrFull},
	} {
		t.Run(what, func(t *testing.T) {
			disk, o := rig(t)
			fs := vfstest.NewFault(disk)
			o.FS, o.brokenFor = fs, time.Hour
			tr := opened(t, o)
			good, bad := item(1, 2*unit+1, name("good", 1)), item(2, 2*unit+1, name("bad", 2))
			noError(t, tr.Put(t.Context(), good))
			before := tr.Usage()
			fs.Add(c.rule)
			wantErr(t, "Put", tr.Put(t.Context(), bad), c.want)
			wantMiss(t, tr, bad)
			wantBlocks(t, tr, good)
			if u := tr.Usage(); u != before {
				t.Errorf("%+v, before %+v", u, before)
			}
			wantErr(t, "Reserve after that", commit(tr, bad), tiers.ErrUnavailable)
			h := tr.Stats().Health
			if !h.Writes || h.Refused != 1 || h.Breaks == 0 || h.ReadOnly != (c.want == tiers.ErrFull) {
				t.Errorf("%+v", h)
			}
			fs.Clear()
			tr.mu.Lock()
			tr.mu.until = time.Time{}
			tr.mu.Unlock()
			noError(t, tr.Put(t.Context(), bad))
			noError(t, tr.Close())
			tr = opened(t, o)
			wantBlocks(t, tr, good, bad)
			if got := recoveredNames(t, tr); len(got) != 2 {
				t.Errorf("names %v", got)
			}
		})
	}
}

// TestFailedWritePinned: whoever has a block pinned whose write fails reads it on, and then its memory is free.
func TestFailedWritePinned(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	tr := opened(t, o)
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: poolPath, Count: 1, Block: hang, Err: vfs.ErrIO})
	it := item(1, 3*unit)
	noError(t, commit(tr, it))
	p, err := tr.Pin(it.Info.ID)
	noError(t, err)
	close(hang)
	noError(t, tr.Sync(t.Context()))
	wantMiss(t, tr, it)
	dst := make([]byte, it.Info.Size)
	if err := p.ReadInto(t.Context(), dst); err != nil || string(dst) != string(it.Data) {
		t.Errorf("%v, its bytes are right: %v", err, string(dst) == string(it.Data))
	}
	if u := tr.Usage(); u.Used != 3*unit || u.Blocks != 0 {
		t.Errorf("%+v", u)
	}
	p.Release()
	if u := tr.Usage(); u.Used != 0 {
		t.Errorf("%+v", u)
	}
	if _, ok := tr.mu.staging.take(64); !ok {
		t.Error("the block still has memory")
	}
}

// TestFailedReads: a read that fails is a miss for now, and the block stays.
func TestFailedReads(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	tr := opened(t, o)
	it := item(1, 3*unit)
	noError(t, tr.Put(t.Context(), it))
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: poolPath, Count: 1, Bytes: 10, Err: vfs.ErrIO})
	_, err := read(t.Context(), tr, it)
	wantErr(t, "a read", err, tiers.ErrUnavailable, vfs.ErrIO)
	wantBlocks(t, tr, it)
	if h := tr.Stats().Health; h.Reads.Failed != 1 || h.Writes {
		t.Errorf("%+v", h)
	}
}

// TestFullDisk: a tier has as much as there is room for, and says what is missing.
func TestFullDisk(t *testing.T) {
	disk, o := rig(t)
	o.FS = vfstest.NewBounded(disk, 7*(container+page)) // three groups of two, and the log
	tr, err := Open(t.Context(), o)
	noError(t, err)
	t.Cleanup(func() { _ = tr.Close() })
	wantErr(t, "WaitGrown", tr.WaitGrown(t.Context()), tiers.ErrFull)
	u := tr.Usage()
	if u.Capacity != 24*unit || u.Capacity+u.Missing != 64*unit || u.Lacks == "" {
		t.Errorf("%+v", u)
	}
	_, err = tr.Reserve(u.Capacity + 1)
	wantErr(t, "more than there is", err, tiers.ErrShort)
	_, err = tr.Reserve(64*unit + 1)
	wantErr(t, "more than there will be", err, tiers.ErrTooLarge)
	var all []tiers.Item
	for i := range u.Capacity / unit {
		all = append(all, item(uint64(i), unit))
	}
	noError(t, tr.Put(t.Context(), all...))
	wantErr(t, "one more", tr.Put(t.Context(), item(99, 1)), tiers.ErrFull)
	noError(t, tr.Close())
	if tr, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantBlocks(t, tr, all...)
	noError(t, tr.Close())
	disk, o = rig(t)
	o.FS = vfstest.NewBounded(disk, container)
	_, err = Open(t.Context(), o)
	wantErr(t, "no room at all", err, tiers.ErrFull)
}

// TestGrowth: a tier is in use, by several, while most of it is still made.
func TestGrowth(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: "pool-000002", Count: 1, Block: hang})
	tr, err := Open(t.Context(), o)
	noError(t, err)
	t.Cleanup(func() { _ = tr.Close() })
	if u := tr.Usage(); u.Capacity != 8*unit || u.Missing != 56*unit || u.Lacks == "" {
		t.Errorf("%+v", u)
	}
	small, large := item(1, 3*unit), item(2, 9*unit)
	_, err = tr.Reserve(large.Info.Size)
	wantErr(t, "more than is ready", err, tiers.ErrShort)
	noError(t, tr.Put(t.Context(), small))
	_, err = tr.Reserve(6 * unit)
	wantErr(t, "more than is free", err, tiers.ErrShort)
	wantErr(t, "WaitGrown", tr.WaitGrown(fs.UntilHung(t.Context(), 1)), tiers.ErrUnavailable)
	close(hang)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 12 {
				it := item(uint64(100*w+i+10), 1+i*1000)
				for {
					err := tr.Put(t.Context(), it)
					if errors.Is(err, tiers.ErrShort) { // it grows
						time.Sleep(time.Millisecond)
						continue
					}
					if err != nil {
						t.Error(err)
					}
					break
				}
				if got, err := read(t.Context(), tr, it); err != nil || string(got) != string(it.Data) {
					t.Errorf("%v", err)
				}
			}
		})
	}
	all.Wait()
	noError(t, tr.WaitGrown(t.Context()), tr.Put(t.Context(), large))
	if u := tr.Usage(); u.Capacity != 64*unit || u.Missing != 0 || u.Lacks != "" {
		t.Errorf("%+v", u)
	}
	wantBlocks(t, tr, small, large)
}

// TestOneProcess: a second tier in one of the directories is refused, and one in directories that can not be made.
func TestOneProcess(t *testing.T) {
	dir := t.TempDir()
	o := inTest(dir, 8*unit)
	tr := opened(t, o)
	_, err := Open(t.Context(), o)
	wantErr(t, "a second one", err, tiers.ErrUnavailable)
	two := o
	two.Dirs = []string{o.Dirs[1]}
	_, err = Open(t.Context(), two)
	wantErr(t, "a second one in one directory", err, tiers.ErrUnavailable)
	noError(t, tr.Close(), tr.Close())
	opened(t, o)
	for what, change := range map[string]func(*Options){
		"no parent":      func(o *Options) { o.Dirs = []string{filepath.Join(dir, "no", "such")} },
		"a file":         func(o *Options) { o.Dirs = []string{o.Dirs[0] + "/lock"} },
		"no directories": func(o *Options) { o.Dirs = nil },
		"no room":        func(o *Options) { o.Bytes = unit - 1 },
		"no staging":     func(o *Options) { o.StagingBytes = 1 },
		"no reads":       func(o *Options) { o.ReadBytes = -1 },
		"negative files": func(o *Options) { o.FileBytes = -1 },
	} {
		p := inTest(dir, 8*unit)
		change(&p)
		_, err := Open(t.Context(), p)
		wantErr(t, what, err, tiers.ErrUnavailable)
	}
}

// TestDirectories: any number of directories is striped evenly, through the page cache or past it, and finds again what it had.
func TestDirectories(t *testing.T) {
	for _, c := range []struct {
		dirs   int
		direct bool
	}{{1, false}, {2, true}, {3, false}, {4, true}, {5, false}} {
		t.Run(fmt.Sprint(c.dirs), func(t *testing.T) {
			o := Options{Bytes: 4 << 20, FileBytes: 100_000, Direct: c.direct}
			for i := range c.dirs {
				o.Dirs = append(o.Dirs, filepath.Join(t.TempDir(), fmt.Sprint(i)))
			}
			tr := opened(t, o)
			var all []tiers.Item
			for i, size := range []int{0, 1, 4096, 99_999, 100_000, int(tr.o.FileBytes), 2*int(tr.o.FileBytes) + 1, 500_000} {
				all = append(all, item(uint64(i), size))
			}
			noError(t, tr.Put(t.Context(), all...))
			wantBlocks(t, tr, all...)
			noError(t, tr.Close())
			tr = opened(t, o)
			wantBlocks(t, tr, all...)
			var sizes []int64
			for _, d := range o.Dirs {
				f, err := os.Stat(filepath.Join(d, fmt.Sprintf("pool-%06d.kv", len(sizes))))
				noError(t, err)
				sizes = append(sizes, f.Size())
			}
			if most := int64(tr.o.FileBytes)*int64(tr.o.containerFiles())/int64(c.dirs) + page; sizes[0] != most {
				t.Errorf("containers of %v bytes, want %d: a share each", sizes, most)
			}
		})
	}
}

// TestManyReaders: readers of blocks that need more buffers than there are go on, and see right bytes, while blocks come
// and go.
func TestManyReaders(t *testing.T) {
	_, o := rig(t)
	o.ReadBytes = 2 * unit
	tr := opened(t, o)
	var all []tiers.Item
	for i := range 8 {
		all = append(all, item(uint64(i), 5*unit+i))
	}
	noError(t, tr.Put(t.Context(), all...))
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range 100 {
				it := all[r.IntN(len(all))]
				switch r.IntN(4) {
				case 0:
					if err := tr.Evict(it.Info.ID); err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrPinned) {
						t.Error(err)
					}
				case 1:
					if err := commit(tr, it); err != nil && !errors.Is(err, tiers.ErrExists) && !errors.Is(err, tiers.ErrFull) && !errors.Is(err, tiers.ErrShort) {
						t.Error(err)
					}
				default:
					got, err := read(t.Context(), tr, it)
					if err == nil && string(got) != string(it.Data) || err != nil && !errors.Is(err, tiers.ErrNotFound) {
						t.Errorf("%v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	noError(t, tr.Sync(t.Context()))
	if h := tr.Stats().Health; h.Breaks+h.Poisoned+h.Reads.Corrupt+h.Reads.Failed > 0 {
		t.Errorf("%+v", h)
	}
	for _, it := range all {
		if err := tr.Evict(it.Info.ID); err != nil && !errors.Is(err, tiers.ErrNotFound) {
			t.Error(err)
		}
	}
	noError(t, tr.Sync(t.Context()))
	if u, st := tr.Usage(), tr.store.Stats(); u.Used != 0 || u.Blocks != 0 || u.Payload != 0 || st.Blocks != 0 || st.Free != 64 {
		t.Errorf("all is evicted: %+v, %+v", u, st)
	}
	if at, ok := tr.mu.staging.take(64); !ok || at != 0 {
		t.Error("some staging memory is still in use")
	}
}

// TestMovedName: a name has one record. With the block of the newest it is gone, and no older one comes back.
func TestMovedName(t *testing.T) {
	_, o := rig(t)
	tr := opened(t, o)
	a, b := item(1, 100, name("moved", 10), name("stays", 1)), item(2, 100)
	noError(t, tr.Put(t.Context(), a, b))
	noError(t, tr.Link(b.Info.ID, name("moved", 20)), tr.Link(a.Info.ID, name("moved", 15)))
	again := func(want map[string]block.ID) {
		t.Helper()
		noError(t, tr.Close())
		tr = opened(t, o)
		if got := recoveredNames(t, tr); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("names %v, want %v", got, want)
		}
	}
	again(map[string]block.ID{"moved": b.Info.ID, "stays": a.Info.ID})
	noError(t, tr.Unlink(a.Info.ID, name("moved", 19)), tr.Unlink(a.Info.ID, name("stays", 0)))
	again(map[string]block.ID{"moved": b.Info.ID, "stays": a.Info.ID})
	noError(t, tr.Evict(b.Info.ID))
	again(map[string]block.ID{"stays": a.Info.ID})
	noError(t, tr.Put(t.Context(), b), tr.Link(b.Info.ID, name("stays", 2)), tr.Unlink(b.Info.ID, name("stays", 2))) // as of its own record
	again(map[string]block.ID{})
	err := tr.Link(a.Info.ID, block.Name{Namespace: "ns", Seq: 1})
	wantErr(t, "a name without a key", err, tiers.ErrUnavailable)
}

// TestManyChanges: more notes than are kept have the log written anew, and nothing is lost.
func TestManyChanges(t *testing.T) {
	disk, o := rig(t)
	fs := vfstest.NewFault(disk)
	o.FS = fs
	tr := opened(t, o)
	it := item(1, 100)
	noError(t, tr.Put(t.Context(), it))
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Path: "index-", Count: 1, Block: hang})
	other := item(2, 100)
	noError(t, commit(tr, other))
	<-fs.UntilHung(t.Context(), 1).Done() // the writer is in a pass
	parent := fmt.Sprintf("%01000d", 0)
	const links = 2 * maxPending / 1000
	for i := range links {
		n := name(fmt.Sprint("k", i%100), uint64(i+1))
		n.Parent = parent
		noError(t, tr.Link(it.Info.ID, n))
	}
	noError(t, tr.Unlink(it.Info.ID, name("k7", links+1)))
	if tr.mu.changes.bytes > maxPending || !tr.mu.lost() {
		t.Fatalf("%d bytes are pending, %d changes dropped", tr.mu.changes.bytes, tr.mu.dropped)
	}
	close(hang)
	noError(t, tr.Sync(t.Context()), tr.Close())
	tr = opened(t, o)
	wantBlocks(t, tr, it, other)
	if got := recoveredNames(t, tr); len(got) != 99 || got["k8"] != it.Info.ID {
		t.Errorf("%d names", len(got))
	}
}

// TestStaging: what is taken is apart, and the lowest.
func TestStaging(t *testing.T) {
	s := make(staging, 6)
	take := func(n int64, want int) {
		t.Helper()
		if at, ok := s.take(n); !ok || at != want {
			t.Errorf("%d buffers at %d, %v; want %d", n, at, ok, want)
		}
	}
	none := func(n int64) {
		t.Helper()
		if at, ok := s.take(n); ok {
			t.Errorf("%d buffers at %d", n, at)
		}
	}
	none(7)
	take(2, 0)
	take(3, 2)
	none(2)
	take(0, 0)
	take(1, 5)
	none(1)
	take(0, 0)
	s.give(0, 2)
	s.give(5, 1)
	none(3)
	take(1, 0)
	take(1, 1)
	s.give(2, 3)
	take(4, 2)
}
