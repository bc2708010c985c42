package direct

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
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
