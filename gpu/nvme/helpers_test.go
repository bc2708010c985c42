package nvme

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/tiers"
)

const unit = 16 << 10 // bytes of a GPU file in these tests

// container is the bytes of one container of rig, its header excluded: half of 8 GPU files.
const container = 8 * unit / 2

// rig is a file system in memory, with the directories of a tier of 64 GPU files, 8 groups of containers. The
// directories are real as well: the locks are the kernel's.
func rig(t *testing.T) (*vfstest.Crash, Options) {
	t.Helper()
	dir, fs := t.TempDir(), vfstest.NewCrash()
	o := inTest(dir, 64*unit)
	o.StagingBytes, o.ReadBytes, o.FS = 64*unit, 8*unit, fs
	above := ""
	for step := range strings.SplitSeq(dir[1:], "/") {
		above += "/" + step
		noError(t, fs.Mkdir(above, 0o700))
	}
	f, err := fs.Create(above+"/file", 0o600)
	noError(t, err)
	noError(t, f.Sync(), f.Close()) // no end takes the directories
	for _, d := range o.Dirs {
		noError(t, os.Mkdir(d, 0o700))
	}
	return fs, o
}

// opened is mustOpen with a Close when the test ends.
func opened(t *testing.T, o Options) *Tier {
	t.Helper()
	tr := mustOpen(t, o)
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

func noError(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
}

// item is a block of drawn bytes, with names.
func item(seed uint64, size int, names ...block.Name) tiers.Item {
	data := noise.Bytes(seed, size)
	return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(size), CRC: block.CRC(data)}, Names: names, Data: data}
}

func name(key string, seq uint64) block.Name { return block.Name{Namespace: "ns", Key: key, Seq: seq} }

// commit stores a block by a slot, without waiting for the disk.
func commit(tr *Tier, it tiers.Item) error {
	s, err := tr.Reserve(it.Info.Size)
	if err != nil {
		return err
	}
	if _, err := s.Write(0, 0, it.Data); err != nil {
		s.Abort()
		return err
	}
	return s.Commit(it.Info, it.Names)
}

// read returns a block that is there.
func read(ctx context.Context, tr *Tier, it tiers.Item) ([]byte, error) {
	p, err := tr.Pin(it.Info.ID)
	if err != nil {
		return nil, err
	}
	defer p.Release()
	dst := make([]byte, it.Info.Size)
	return dst, p.ReadInto(ctx, dst)
}

// wantBlocks fails unless each block is there with its bytes.
func wantBlocks(t *testing.T, tr *Tier, items ...tiers.Item) {
	t.Helper()
	for i, it := range items {
		got, err := read(t.Context(), tr, it)
		if err != nil || string(got) != string(it.Data) {
			t.Errorf("block %d of %d bytes: %v, its bytes are right: %v", i, it.Info.Size, err, string(got) == string(it.Data))
		}
	}
}

func wantMiss(t *testing.T, tr *Tier, items ...tiers.Item) {
	t.Helper()
	for _, it := range items {
		_, err := read(t.Context(), tr, it)
		wantErr(t, "a block that is gone", err, tiers.ErrNotFound)
	}
}

// recoveredNames are the names that are found, with the blocks that they point to.
func recoveredNames(t *testing.T, tr *Tier) map[string]block.ID {
	t.Helper()
	found := map[string]block.ID{}
	noError(t, tr.Recover(func(e tiers.Entry) error {
		for _, n := range e.Names {
			if _, twice := found[n.Key]; twice {
				t.Errorf("name %q is of two blocks", n.Key)
			}
			found[n.Key] = e.Info.ID
		}
		return nil
	}))
	return found
}

// unlocked opens a tier whose directories another one still may hold for a moment.
func unlocked(t *testing.T, o Options) *Tier {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		tr, err := Open(t.Context(), o)
		if err == nil {
			noError(t, tr.WaitGrown(t.Context()))
			t.Cleanup(func() { _ = tr.Close() })
			return tr
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// poolPath is part of the name of each container.
const poolPath = string(filepath.Separator) + "pool-"
