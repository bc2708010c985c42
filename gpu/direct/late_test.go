package direct

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// faultyDisks are disks of the usual size whose file system does what rules say.
func faultyDisks(t *testing.T) (*nvme.Tier, *vfstest.Fault) {
	t.Helper()
	dir, fs := t.TempDir(), vfstest.NewFault(vfs.OS{})
	return openDisks(t, nvme.Options{Dirs: []string{filepath.Join(dir, "disk0"), filepath.Join(dir, "disk1")}, Bytes: 64 * unit, FileBytes: unit, Direct: true, FS: fs}), fs
}

// inTime fails a test whose fn waits for a disk.
func inTime(t *testing.T, what string, fn func()) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fn()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatalf("%s waits for the disk", what)
	}
}

// wantUnused fails unless nothing of the disks is used, soon.
func wantUnused(t *testing.T, d *nvme.Tier) {
	t.Helper()
	for end := time.Now().Add(time.Minute); d.Usage().Used != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", d.Usage())
		}
	}
}

// pools is part of the path of each container.
const pools = string(filepath.Separator) + "pool-"

// TestRingOfDisksThatHang: who asks for a ring waits until its context ends, and no longer; nothing is left of the ring.
func TestRingOfDisksThatHang(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpClose} {
		t.Run(string(op), func(t *testing.T) {
			d, fs := faultyDisks(t)
			hang := make(chan struct{})
			fs.Add(vfstest.Rule{Op: op, Path: pools, Block: hang})
			inTime(t, "a ring", func() {
				r, err := Over(fs.UntilHung(t.Context(), 1), d, true, Options{Bytes: 1 << 20})
				if r != nil || !errors.Is(err, tiers.ErrUnavailable) {
					t.Errorf("%v, %v", r, err)
				}
			})
			fs.Clear()
			close(hang)
			wantUnused(t, d)
			wantWrites(t, d)
		})
	}
}

// wantWrites fails unless a new ring writes, soon: an earlier one may still have the lot.
func wantWrites(t *testing.T, d *nvme.Tier) {
	t.Helper()
	r, err := Over(t.Context(), d, true, Options{Bytes: 1 << 20})
	must(t, err)
	defer end(t, r)
	r.nextLook(time.Time{})
	awaitLot(t, r)
}

// TestLotOfADiskThatHangs: a ring whose lot the disk does not open reads meanwhile, writes later, and is not waited for when it ends before.
func TestLotOfADiskThatHangs(t *testing.T) {
	for name, ends := range map[string]bool{"answers": false, "too late": true} {
		t.Run(name, func(t *testing.T) {
			d, fs := faultyDisks(t)
			files, err := d.Containers(t.Context())
			must(t, err)
			for _, f := range files {
				must(t, f.Close())
			}
			hang := make(chan struct{})
			fs.Add(vfstest.Rule{Op: vfs.OpOpen, Path: pools, After: len(files), Block: hang})
			var r *Ring
			inTime(t, "a ring", func() { r, err = Over(t.Context(), d, true, Options{Bytes: 1 << 20}) })
			must(t, err)
			inTime(t, "a batch", func() {
				if r.Writes() || r.Batch(gio.Write, 1, 0) != nil {
					t.Error("it writes to files that are not open")
				}
				b := r.Batch(gio.Read, 1, 0)
				if b == nil {
					t.Error("it does not read")
					return
				}
				b.End()
			})
			if ends {
				inTime(t, "the end", func() { end(t, r) })
			}
			fs.Clear()
			close(hang)
			if ends {
				wantUnused(t, d)
				wantWrites(t, d)
				return
			}
			awaitLot(t, r)
			select {
			case <-r.Writing():
			default:
				t.Error("nobody is told that it writes")
			}
			end(t, r)
			wantUnused(t, d)
		})
	}
}

// TestAnswers: disks that answer do so for reads and writes, those that hang or fail do not, and of the ring's goroutines one waits for them.
func TestAnswers(t *testing.T) {
	for op, what := range map[gio.Op]vfs.Op{gio.Read: vfs.OpRead, gio.Write: vfs.OpWrite} {
		t.Run(string(what), func(t *testing.T) {
			d, fs := faultyDisks(t)
			r := writer(t, d, Options{})
			scribble(t, r, 64<<10)
			must(t, r.Answers(t.Context(), op))
			fs.Add(vfstest.Rule{Op: what, Path: "disk1", Err: vfs.ErrIO})
			if err := r.Answers(t.Context(), op); !errors.Is(err, tiers.ErrUnavailable) {
				t.Errorf("disks that fail: %v", err)
			}
			fs.Clear()
			hang := make(chan struct{})
			fs.Add(vfstest.Rule{Op: what, Path: "disk1", Block: hang})
			inTime(t, "a look at the disks", func() {
				for range 20 {
					if err := r.Answers(fs.UntilHung(t.Context(), 1), op); !errors.Is(err, tiers.ErrUnavailable) {
						t.Errorf("disks that hang: %v", err)
					}
				}
			})
			if fs.UntilHung(t.Context(), 2).Err() != nil {
				t.Error("several goroutines wait for the disks")
			}
			fs.Clear()
			close(hang)
			for end := time.Now().Add(time.Minute); r.Answers(t.Context(), op) != nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("disks that answer again")
				}
			}
		})
	}
	if r, err := Open([]*os.File{openOne(t, filledDir(t))}, Options{Bytes: 1 << 20}); err != nil || r.Answers(t.Context(), gio.Read) == nil {
		t.Errorf("a ring over files of nobody: %v", err)
	} else {
		end(t, r)
	}
}

// filledDir is a directory with containers.
func filledDir(t *testing.T) string {
	t.Helper()
	_, o := disks(t)
	return o.Dirs[0]
}

// TestLateBatch: while a batch of a ring is late the ring takes no others, and until then what it reads stays on the disks.
func TestLateBatch(t *testing.T) {
	stall := make(chan struct{})
	d, _ := disks(t)
	r := writer(t, d, Options{Fault: func(gio.IO) gio.Fault { return gio.Fault{Until: stall} }})
	b := r.Batch(gio.Write, 1, 0)
	if has := b.Store([][]region.Extent{{{Offset: 0, Length: unit}}}); !has[0] {
		t.Fatal("no room")
	}
	must(t, b.Begin())
	b.Late()
	b.Late()
	if r.Batch(gio.Read, 1, 0) != nil || r.Batch(gio.Write, 1, 0) != nil {
		t.Error("it takes others")
	}
	close(stall)
	b.Linger()
	b.End()
	other := r.Batch(gio.Read, 1, 0)
	if other == nil {
		t.Fatal("it takes no others when it has ended")
	}
	other.End()
}
