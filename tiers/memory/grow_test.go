package memory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/arena"
	"cascadekv/internal/testing/testneed"
	"cascadekv/tiers"
)

// smallShm returns the root of a tmpfs of so many bytes that only this process
// sees. It is mounted nowhere, and ends with what is open in it.
func smallShm(t *testing.T, size int64) string {
	t.Helper()
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	testneed.That(t, !errors.Is(err, unix.EPERM), "the right to make a tmpfs", "run this test as root")
	testneed.That(t, !errors.Is(err, unix.ENOSYS), "fsopen", "run this test on Linux 5.2 or later, and let it make mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(config)
	if err := errors.Join(unix.FsconfigSetString(config, "size", strconv.FormatInt(size, 10)), unix.FsconfigCreate(config)); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(root) })
	return "/proc/self/fd/" + strconv.Itoa(root)
}

// shortTier opens an arena of four steps where half of that is free: others
// took the rest after its file had got its size. giveBack has them leave.
func shortTier(t *testing.T) (tr *Tier, giveBack func()) {
	t.Helper()
	const size = 4 * growStep
	dir := smallShm(t, size+growStep)
	others, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { others.Close() })
	if err := unix.Fallocate(int(others.Fd()), 0, 0, 5*growStep/2); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.arena")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	tr, err = Open(Options{Name: "test", Path: path, Bytes: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr, func() {
		if err := others.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpaceVanishesWhileGrowing: a tier serves from what it got, touches nothing
// that it did not get, and grows on once there is room.
func TestSpaceVanishesWhileGrowing(t *testing.T) {
	tr, giveBack := shortTier(t)
	err := tr.WaitReady(t.Context())
	if !errors.Is(err, arena.ErrNoShare) {
		t.Fatalf("error %v, want %v", err, arena.ErrNoShare)
	}
	ready, capacity, err := tr.Ready()
	if least := int64(5*growStep/2 - growSpare - 2*growUnit); !errors.Is(err, arena.ErrNoShare) || ready < least || ready > 5*growStep/2-growSpare {
		t.Errorf("%d of %d bytes are ready, %v; want %d at least", ready, capacity, err, least)
	}
	if u := tr.Usage(); u.Capacity != ready || u.Missing != capacity-ready || !strings.Contains(u.Lacks, "free space there, or lower test.bytes") {
		t.Errorf("usage %+v with %d of %d bytes ready", u, ready, capacity)
	}
	items := fill(t, tr, 1<<20) // touches every page of what is ready
	if _, err := tr.Reserve(capacity - growStep/2); !errors.Is(err, tiers.ErrShort) || !errors.Is(err, arena.ErrNoShare) {
		t.Errorf("room for more than is ready: %v, want %v", err, tiers.ErrShort)
	}
	var now []tiers.Slot
	s, err := tr.ReserveNow(1 << 10)
	for ; err == nil; s, err = tr.ReserveNow(1 << 10) {
		now = append(now, s)
	}
	if !errors.Is(err, tiers.ErrNotNow) {
		t.Errorf("no room at once, while more may come: %v", err)
	}
	for _, s := range now {
		s.Abort()
	}
	if err := tr.Evict(items[0].Info.ID); err != nil {
		t.Fatal(err)
	}
	if err := tr.Put(t.Context(), items[0]); err != nil {
		t.Errorf("a put after an eviction: %v", err)
	}
	wantAll(t, tr, items)

	giveBack()
	if err := tr.WaitGrown(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready, capacity, err = tr.Ready()
	if u := tr.Usage(); err != nil || ready != capacity || u.Capacity != capacity || u.Missing != 0 {
		t.Errorf("%d of %d bytes are ready, %v, usage %+v", ready, capacity, err, u)
	}
	for i := range len(items) / 2 {
		it := testItem(byte(i), 1<<20+64)
		it.Names[0].Key = fmt.Sprint("more", i)
		if err := tr.Put(t.Context(), it); err != nil {
			t.Fatalf("put %d after the tier grew: %v", i, err)
		}
		items = append(items, it)
	}
	wantAll(t, tr, items)
}

func wantAll(t *testing.T, tr *Tier, items []tiers.Item) {
	t.Helper()
	for i, it := range items {
		p, err := tr.Pin(it.Info.ID)
		if err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
		if !bytes.Equal(p.Bytes(), it.Data) {
			t.Errorf("block %d has wrong bytes", i)
		}
		p.Release()
	}
}

// TestShortTierLeavesOthersSome: what is left at the end stays others', and is
// not taken for a moment either, to find out how much it is.
func TestShortTierLeavesOthersSome(t *testing.T) {
	tr, _ := shortTier(t)
	if err := tr.WaitReady(t.Context()); !errors.Is(err, arena.ErrNoShare) || !strings.Contains(err.Error(), "free in its file system") {
		t.Errorf("error %v, want one that comes of looking first", err)
	}
	left := func(when string) {
		if room, err := tr.arena.Room(); err != nil || room < growSpare-growUnit || room > growSpare+growUnit {
			t.Errorf("%d bytes are free %s, %v; want some %d", room, when, err, growSpare)
		}
	}
	left("of a tier that found no room")
	beyond := tr.mu.alloc.Origin + tr.mu.alloc.Size()
	tr.arena.Commit(beyond, growStep) // as when others take the room between the look and the step
	if err := tr.arena.Drop(beyond, growStep); err != nil {
		t.Error(err)
	}
	left("after a step that was refused half-way")
}

// TestAlmostNoRoom: others take the room while the arena is being reserved. The
// tier takes what there is; with too little for a block it says so at once.
func TestAlmostNoRoom(t *testing.T) {
	const size = 60 << 20
	for name, c := range map[string]struct {
		free int64 // beside the arena's head
		want int64 // ready, at least
	}{
		"a quarter": {16 << 20, 8 << 20},
		"nothing":   {growSpare / 2, 0},
	} {
		dir := smallShm(t, size+2<<20)
		path := filepath.Join(dir, "a.arena")
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		others, err := os.Create(filepath.Join(dir, "others"))
		if err != nil {
			t.Fatal(err)
		}
		defer others.Close()
		if err := unix.Fallocate(int(others.Fd()), 0, 0, size+2<<20-c.free); err != nil {
			t.Fatal(err)
		}
		tr, err := Open(Options{Name: "test", Path: path, Bytes: size})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if err := tr.WaitReady(t.Context()); !errors.Is(err, arena.ErrNoShare) {
			t.Fatalf("%s: error %v, want %v", name, err, arena.ErrNoShare)
		}
		ready, _, _ := tr.Ready()
		err = tr.Put(t.Context(), testItem(1, 4<<20))
		if enough := c.want > 0; ready < c.want || ready > c.free || (err == nil) != enough || !enough && !errors.Is(err, tiers.ErrShort) {
			t.Errorf("%s: %d of %d bytes are ready, a put of 4 MiB: %v", name, ready, c.free, err)
		}
	}
}

// TestMemoryIsShort: a tier takes what its process may have, and grows on when
// that is more.
func TestMemoryIsShort(t *testing.T) {
	for name, path := range map[string]string{"a file": filepath.Join(smallShm(t, 1<<30), "a"), "anonymous": ""} {
		var limit atomic.Int64
		limit.Store(40 << 20)
		var tr *Tier
		ready := func() int64 { // called by the tier: it may not be locked
			n, _, _ := tr.Ready()
			return n
		}
		opened := make(chan bool)
		tr, err := Open(Options{Name: "test", Path: path, Bytes: 4 * growStep, Left: func() (int64, string) {
			<-opened
			return limit.Load() - ready(), "control group /job_1"
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		close(opened)
		if err := tr.WaitReady(t.Context()); !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "free in control group /job_1") || !strings.Contains(err.Error(), "sbatch --mem") {
			t.Errorf("%s: error %v, want %v with its bound and remedy", name, err, ErrMemory)
		}
		if n := ready(); n != 36<<20 {
			t.Errorf("%s: %d bytes are ready of a limit of %d", name, n, limit.Load())
		}
		limit.Store(1 << 30)
		if err := tr.WaitGrown(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseOfAShortTier does not wait for room.
func TestCloseOfAShortTier(t *testing.T) {
	tr, _ := shortTier(t)
	if err := tr.WaitReady(t.Context()); !errors.Is(err, arena.ErrNoShare) {
		t.Fatalf("error %v, want %v", err, arena.ErrNoShare)
	}
	grown := make(chan error, 1)
	go func() { grown <- tr.WaitGrown(t.Context()) }()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if err := <-grown; err == nil {
		t.Error("a closed tier says that it has grown")
	}
}
