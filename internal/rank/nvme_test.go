package rank

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/testlog"
	"cascadekv/internal/units"
)

// TestNVMe: what leaves shm is found on the disks, by the rank that is started next too, unless it was deleted.
func TestNVMe(t *testing.T) {
	dir := t.TempDir()
	c := configOf(t, dir)
	c.NVMe.Paths = []string{filepath.Join(dir, "disk0"), filepath.Join(dir, "disk1")}
	c.NVMe.Bytes, c.NVMe.FileBytes = 128*units.MiB, 256*units.KiB
	const blocks, size = 100, 400_000 // more than shm has
	key := func(i int) string { return fmt.Sprint("block", i) }
	var log testlog.Log
	r, _, end := live(t, c, &log)
	for i := range blocks {
		put(t, r, key(i), noise.Bytes(uint64(i), size))
	}
	deep := r.Store().Stats().Tiers[1]
	if deep.Name != "nvme" || deep.Usage.Blocks == 0 {
		t.Errorf("%+v", deep)
	}
	for i := range blocks {
		if !has(t, r, key(i), noise.Bytes(uint64(i), size)) {
			t.Errorf("block %d is not there", i)
		}
	}
	if !r.Store().Delete(t.Context(), "ns", key(3)) {
		t.Error("block 3 can not be deleted")
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(c.Shm.Path)
	r, _, end = live(t, c, &log)
	found := 0
	for i := range blocks {
		switch there := has(t, r, key(i), noise.Bytes(uint64(i), size)); {
		case there && i == 3:
			t.Error("a deleted block is back")
		case there:
			found++
		}
	}
	if found < blocks/2 {
		t.Errorf("the next rank finds %d of %d blocks", found, blocks)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// TestNVMeOfAnother: two ranks never share a disk's directory.
func TestNVMeOfAnother(t *testing.T) {
	dir := t.TempDir()
	c := configOf(t, dir)
	c.NVMe.Paths, c.NVMe.Bytes = []string{filepath.Join(dir, "disk")}, 64*units.MiB
	var log testlog.Log
	_, _, end := live(t, c, &log)
	other := configOf(t, t.TempDir())
	other.NVMe = c.NVMe
	if _, err := Open(t.Context(), Options{Config: other, Log: slog.New(slog.NewTextHandler(&log, nil))}); err == nil || !bytes.Contains([]byte(err.Error()), []byte("another process")) {
		t.Errorf("a second rank: %v", err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// TestNVMeBudget: the limit of the configuration is the level's, and a reload changes it. What the disks have no budget for
// is dropped and counted, where there is nothing else below.
func TestNVMeBudget(t *testing.T) {
	dir := t.TempDir()
	c := configOf(t, dir)
	c.NVMe.Paths, c.NVMe.Bytes, c.NVMe.MaxWrite = []string{filepath.Join(dir, "disk")}, 64*units.MiB, 200*units.MiB
	var log testlog.Log
	r, _, end := live(t, c, &log)
	want := func(limit units.Bytes) {
		t.Helper()
		if b := r.Store().Stats().Tiers[1].Budget; (b == nil) != (limit == 0) || b != nil && (b.Writes != int64(limit) || b.Reads != 0) {
			t.Errorf("%v: %+v", limit, b)
		}
	}
	storm := func(name string) (shed uint64, onDisk int) {
		const blocks, size = 100, 400_000 // more than shm has
		for i := range blocks {
			put(t, r, fmt.Sprint(name, i), noise.Bytes(uint64(i)+uint64(len(name))<<32, size))
		}
		st := r.Store().Stats()
		return st.Shed, st.Tiers[1].Usage.Blocks
	}
	want(c.NVMe.MaxWrite)
	c.NVMe.MaxWrite = 1
	r.Reload(c, "")
	want(1)
	shed, onDisk := storm("a")
	if onDisk > 1 || shed < 50 {
		t.Errorf("with 1 byte a second %d blocks are on the disk, %d were shed", onDisk, shed)
	}
	c.NVMe.MaxWrite = 0
	r.Reload(c, "")
	want(0)
	if after, more := storm("bb"); after != shed || more <= onDisk {
		t.Errorf("without a limit %d blocks are on the disk, %d were shed", more, after-shed)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
}
