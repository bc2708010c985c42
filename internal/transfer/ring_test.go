package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/block"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
	"cascadekv/tiers/memory"
)

const (
	ringBlocks = 12
	ringBlock  = 64 << 10 // of which a GPU file has a quarter
)

// ringRig is a store whose blocks only the disks have, and a client with a ring.
type ringRig struct {
	*Pool
	t     testing.TB
	disk  nvme.Options
	fs    *vfstest.Fault // of the disks, but for what rings read and write
	disks *nvme.Tier
	store *cascade.Store
	x     *Client
	at    *Region
	n     int64
	mem   []byte // the client's, of data memory
	words []byte // the client's, of the ring region
	peer  int    // the client's end of the socket
	asked atomic.Int64
	late  atomic.Int64 // what the clock of the store shows, in nanoseconds: it stands still
}

func (r *ringRig) now() time.Time { return time.Unix(1_800_000_000, r.late.Load()) }

// wordsAt is where the event words lie in a ring region, one in each line of 64 bytes.
const wordsAt = 1280

func keyAt(i int) string { return fmt.Sprint("k", i) }

func bytesOf(i int) []byte { return noise.Bytes(uint64(i), ringBlock) }

// newRingRig makes one over an engine. change may alter what a ring is made of.
func newRingRig(t testing.TB, o direct.Options, change func(containers []*os.File)) *ringRig {
	t.Helper()
	r := &ringRig{t: t, fs: vfstest.NewFault(vfs.OS{})}
	dir := t.TempDir()
	disk := nvme.Options{Dirs: []string{filepath.Join(dir, "disk0"), filepath.Join(dir, "disk1")}, Bytes: 16 << 20, FileBytes: ringBlock / 4, Direct: true}
	var items []tiers.Item
	for i := range ringBlocks {
		p := bytesOf(i)
		items = append(items, tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: ringBlock, CRC: block.CRC(p)}, Data: p,
			Names: []block.Name{{Namespace: "ns", Key: keyAt(i), Seq: uint64(i + 1)}}})
	}
	fill, err := nvme.Open(t.Context(), disk)
	must(t, err)
	must(t, fill.WaitGrown(t.Context()))
	must(t, fill.Put(t.Context(), items...))
	must(t, fill.Close())
	r.disk, disk.FS = disk, r.fs
	r.disks, err = nvme.Open(t.Context(), disk)
	must(t, err)
	must(t, r.disks.WaitGrown(t.Context()))
	host, err := memory.Open(memory.Options{Name: "host", Bytes: 8 << 20})
	must(t, err)
	quiet := slog.New(slog.DiscardHandler)
	r.store, err = cascade.Open(context.Background(), cascade.Options{Memory: []tiers.Memory{host, r.disks}, Log: quiet, NewPolicy: r.policy, Now: r.now})
	must(t, err)
	t.Cleanup(func() { _ = r.store.Close(context.Background()) })
	r.Pool = NewPool(r.store, quiet)
	r.patience.disk, r.patience.probe = time.Minute, time.Minute // a busy machine is no disk that hangs
	r.Rings = func(bytes int64, write bool) (*direct.Ring, error) {
		if o.Bytes = bytes; change == nil {
			return direct.Over(t.Context(), r.disks, write, o)
		}
		containers, err := r.disks.Containers(t.Context())
		if err != nil {
			return nil, err
		}
		change(containers)
		return direct.Open(containers, o)
	}
	r.x = r.NewClient()
	r.attach(false)
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// attach gives the client a ring with room for twice the blocks.
func (r *ringRig) attach(write bool) {
	r.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(r.t, err)
	r.peer = fds[0]
	r.n, err = r.x.AttachRing(fds[1], -1, 2*ringBlocks*ringBlock, write)
	must(r.t, err)
	r.at = r.x.Region(r.n)
	oob := make([]byte, unix.CmsgSpace(8))
	_, n, _, _, err := unix.Recvmsg(r.peer, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	must(r.t, err)
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	must(r.t, err)
	got, err := unix.ParseUnixRights(&messages[0])
	must(r.t, err)
	r.words, r.mem = mapWhole(r.t, got[0]), mapWhole(r.t, got[1])
	r.t.Cleanup(func() {
		must(r.t, r.x.Close())
		CloseAll(append(got, r.peer)...)
	})
}

func mapWhole(t testing.TB, fd int) []byte {
	t.Helper()
	size, err := region.SizeOf(fd)
	must(t, err)
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// raise is what the client's device does.
func (r *ringRig) raise(word int, value uint32) {
	(*atomic.Uint32)(unsafe.Pointer(&r.words[wordsAt+64*(word-1)])).Store(value)
}

// load submits a job of some blocks, block i to the i-th place plus shift bytes.
func (r *ringRig) load(job int64, after After, shift int, blocks ...int) {
	r.t.Helper()
	if bad := r.x.Submit(r.transfer(job, after, shift, blocks...), r.at); bad != "" {
		r.t.Fatal(bad)
	}
}

// transfer is what load submits.
func (r *ringRig) transfer(job int64, after After, shift int, blocks ...int) *Transfer {
	r.t.Helper()
	var pairs []byte
	var keys []string
	for _, i := range blocks {
		at := uint64(i*ringBlock + shift)
		for _, n := range []uint64{at, ringBlock / 2, at + ringBlock/2, ringBlock / 2} {
			pairs = binary.LittleEndian.AppendUint64(pairs, n)
		}
		keys = append(keys, keyAt(i))
	}
	layout, err := region.ParseLayout(pairs, len(keys), r.at.Size())
	must(r.t, err)
	tr, err := r.New(r.at, "ns", keys, layout, Options{Job: job, After: after}, false)
	must(r.t, err)
	return tr
}

// ended waits until so many jobs have ended, and returns the statuses of each.
func (r *ringRig) ended(jobs int) map[int64]string {
	r.t.Helper()
	all := map[int64]string{}
	for end := time.Now().Add(time.Minute); len(all) < jobs; {
		for _, f := range r.x.Collect() {
			all[f.Number] = strings.Map(func(c rune) rune { return c + '0' }, string(f.Status))
		}
		if time.Now().After(end) {
			r.t.Fatalf("after a minute %d jobs of %d have ended: %v", len(all), jobs, all)
		}
		time.Sleep(time.Millisecond)
	}
	return all
}

// has reports whether a place has a block's bytes.
func (r *ringRig) has(i, shift int) bool {
	return bytes.Equal(r.mem[i*ringBlock+shift:][:ringBlock], bytesOf(i))
}

// blank fails if any byte of the memory was written to.
func (r *ringRig) blank(what string) {
	r.t.Helper()
	if !bytes.Equal(r.mem, make([]byte, len(r.mem))) {
		r.t.Errorf("%s: the memory was written to", what)
	}
}

// quiet fails unless nothing holds a block any more.
func (r *ringRig) quiet() {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); r.store.Stats().Views != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%d views are left", r.store.Stats().Views)
		}
	}
}

func span12() []int { return span(0, ringBlocks) }

var twelve = strings.Repeat("1", ringBlocks)

// TestRing: blocks that only the disks have come to their places once their word is raised, and not before, and none of them
// through memory of the store.
func TestRing(t *testing.T) {
	for _, engine := range []string{gio.EngineUring, gio.EngineUser} {
		t.Run(engine, func(t *testing.T) {
			if engine == gio.EngineUring {
				needUring(t)
			}
			r := newRingRig(t, direct.Options{Engine: engine}, nil)
			for round := range uint32(5) {
				clear(r.mem)
				r.load(1, After{3, round + 1}, 0, span12()...)
				r.awaitReading()
				r.raise(2, 100)
				r.blank("before its word")
				if got := r.x.Collect(); len(got) != 0 {
					t.Fatalf("it has ended before its word: %v", got)
				}
				r.raise(3, round+1)
				if got := r.ended(1)[1]; got != twelve {
					t.Errorf("round %d: %s", round, got)
				}
				for i := range ringBlocks {
					if !r.has(i, 0) {
						t.Errorf("round %d: block %d has other bytes", round, i)
					}
				}
			}
			if blocks, _ := r.Loaded(); blocks != 5*ringBlocks {
				t.Errorf("%d blocks are counted", blocks)
			}
			if n := r.store.Stats().Tiers[0].Usage.Blocks; n != 0 {
				t.Errorf("%d blocks are in memory", n)
			}
			r.wantCounted(5*ringBlocks, 1, 5*ringBlocks)
			r.quiet()
		})
	}
}

// awaitReading waits until the one job has handed its reads to the ring.
func (r *ringRig) awaitReading() {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		reading, waiting := r.mu.reading, r.mu.waiting
		r.mu.Unlock()
		switch {
		case reading > 0:
			return
		case waiting == 0, time.Now().After(end):
			r.t.Fatalf("no job waits for its ring, %d are not finished", waiting)
		}
	}
}

// TestRingFaults: reads that fail or come to less are made the ordinary way.
func TestRingFaults(t *testing.T) {
	for name, f := range map[string]gio.Fault{"EIO": {Errno: unix.EIO}, "short": {Short: 512}} {
		t.Run(name, func(t *testing.T) {
			var failed atomic.Int64
			r := newRingRig(t, direct.Options{Fault: func(io gio.IO) gio.Fault {
				if io.Index%5 == 2 {
					failed.Add(1)
					return f
				}
				return gio.Fault{}
			}}, nil)
			r.raise(1, 1)
			r.load(1, After{1, 1}, 0, span12()...)
			if got := r.ended(1)[1]; got != twelve || failed.Load() == 0 {
				t.Errorf("%s, %d reads failed", got, failed.Load())
			}
			for i := range ringBlocks {
				if !r.has(i, 0) {
					t.Errorf("block %d has other bytes", i)
				}
			}
			r.wantCounted(ringBlocks, 1, ringBlocks)
			r.quiet()
		})
	}
}

// TestRingDamage: a bit that the disk flips makes a miss, and the block is withdrawn; so no wrong byte counts as loaded.
func TestRingDamage(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	containers, err := r.disks.Containers(t.Context())
	must(t, err)
	for _, c := range containers {
		f, err := os.OpenFile(c.Name(), os.O_RDWR, 0)
		must(t, err)
		one := make([]byte, 1)
		_, err = f.ReadAt(one, 4096+123) // of the first object
		must(t, err)
		one[0] ^= 4
		_, err = f.WriteAt(one, 4096+123)
		must(t, err)
		must(t, f.Close())
		must(t, c.Close())
	}
	r.raise(1, 1)
	r.load(1, After{1, 1}, 0, span12()...)
	got := r.ended(1)[1]
	damaged := strings.Count(got, "0")
	if damaged == 0 || damaged == ringBlocks || damaged+strings.Count(got, "1") != ringBlocks {
		t.Errorf("statuses %s", got)
	}
	for i := range ringBlocks {
		if got[i] == '1' && !r.has(i, 0) {
			t.Errorf("block %d has other bytes", i)
		}
		if there := r.store.Contains(t.Context(), "ns", keyAt(i)); there != (got[i] == '1') {
			t.Errorf("block %d, status %c, is there: %v", i, got[i], there)
		}
	}
	r.wantCounted(ringBlocks, 1, ringBlocks-damaged)
	r.quiet()
}

// TestRingWithoutEvent: a job whose word nobody raises, one that is cancelled and those of a client that goes end, and nothing is
// written to their memory when the word is raised then.
func TestRingWithoutEvent(t *testing.T) {
	for name, end := range map[string]struct {
		end  func(r *ringRig)
		want string
	}{
		"too late":  {func(r *ringRig) {}, strings.Repeat("0", ringBlocks)},
		"cancelled": {func(r *ringRig) { r.x.Cancel(1) }, strings.Repeat("2", ringBlocks)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRingRig(t, direct.Options{}, nil)
			if name == "too late" {
				r.patience.event = 10 * time.Millisecond
			}
			r.load(1, After{1, 1}, 0, span12()...)
			end.end(r)
			if got := r.ended(1)[1]; got != end.want {
				t.Errorf("%s, want %s", got, end.want)
			}
			if name == "too late" { // one that is cancelled may not have begun
				r.wantCounted(ringBlocks, 1, ringBlocks)
			}
			r.raise(1, 1)
			r.load(2, After{2, 0}, ringBlocks*ringBlock, 0) // the same IOCB, which the device looks at after it
			if got := r.ended(1)[2]; got != "1" || !r.has(0, ringBlocks*ringBlock) {
				t.Errorf("what follows: %s", got)
			}
			clear(r.mem[ringBlocks*ringBlock:])
			r.blank(name)
			r.quiet()
		})
	}
}

// TestRingClientGoes: the end of a client waits for no event, and leaves nothing.
func TestRingClientGoes(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	ring := r.at.ring
	for job := range int64(5) {
		r.load(job, After{1, 1}, 0, span12()...)
	}
	must(t, r.x.Close())
	<-ring.Done()
	r.quiet()
	if used, _ := r.Budget.Usage(); used != (region.Cost{}) {
		t.Errorf("left: %+v", used)
	}
}

// TestRingStalls: a disk that does not answer costs the job its patience, and its region too; what it holds is given back when the
// disk answers. Meanwhile it is left alone by all who load, as after a get that it did not answer.
func TestRingStalls(t *testing.T) {
	stall := make(chan struct{})
	r := newRingRig(t, direct.Options{Fault: func(io gio.IO) (f gio.Fault) {
		if io.Index == 0 {
			f.Until = stall
		}
		return f
	}}, nil)
	r.hang(vfs.OpRead, stall)
	r.raise(1, 1)
	r.load(1, After{1, 1}, 0, 0, 1)
	if got := r.ended(1)[1]; got != "33" {
		t.Errorf("statuses %s", got)
	}
	r.wantCounted(2, 1, 0)
	if r.store.Stats().Views == 0 {
		t.Error("nothing holds the blocks that are being read")
	}
	r.raise(2, 1)
	for job, after := range []After{{}, {2, 1}} { // both are misses at once, and leave the disk alone
		r.load(int64(2+job), after, ringBlocks*ringBlock, 2)
		if got := r.ended(1)[int64(2+job)]; got != "0" {
			t.Errorf("while the disk is left alone: %s", got)
		}
		r.wantCounted(3+job, 1, 0)
	}
	r.late.Add(int64(residency.ColdRetry))
	r.fs.Clear()
	r.load(4, After{2, 1}, ringBlocks*ringBlock, 2) // other memory of the region serves
	if got := r.ended(1)[4]; got != "1" || !r.has(2, ringBlocks*ringBlock) {
		t.Errorf("the ordinary way, later: %s", got)
	}
	close(stall)
	r.quiet()
	r.patience.disk = time.Minute
	r.load(5, After{2, 1}, ringBlocks*ringBlock, 3)
	if got := r.ended(1)[5]; got != "1" || !r.has(3, ringBlocks*ringBlock) {
		t.Errorf("by the ring, later: %s", got)
	}
	r.quiet()
}

// TestRingStallsAtTheEnd: a client that goes in the middle of a batch, whose disk does not answer, is not waited for longer than
// that takes; all of it is given back when the disk answers.
func TestRingStallsAtTheEnd(t *testing.T) {
	stall, begun := make(chan struct{}), make(chan struct{})
	r := newRingRig(t, direct.Options{Fault: func(io gio.IO) (f gio.Fault) {
		if io.Index == 0 {
			close(begun)
			f.Until = stall
		}
		return f
	}}, nil)
	r.patience = ringPatience{time.Minute, 20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond}
	ring := r.at.ring
	r.raise(1, 1)
	r.load(1, After{1, 1}, 0, span12()...)
	<-begun
	if err := r.x.Close(); !errors.Is(err, gio.ErrBusy) {
		t.Errorf("the end: %v", err)
	}
	select {
	case <-ring.Done():
		t.Error("the memory of a read under way is given back")
	default:
	}
	if used, _ := r.Budget.Usage(); used.Pinned == 0 {
		t.Error("memory that stays is not counted")
	}
	close(stall)
	<-ring.Done()
	r.quiet()
}

// TestRingTooMany: what finds no free batch goes the ordinary way, at once.
func TestRingTooMany(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	const jobs = 40 // more than a ring has batches
	for job := range int64(jobs) {
		r.load(job, After{1, 1}, int(job%2)*ringBlocks*ringBlock, int(job)%ringBlocks)
	}
	early := r.ended(jobs - 32)
	r.raise(1, 1)
	for job, got := range r.ended(jobs - len(early)) {
		early[job] = got
	}
	for job, got := range early {
		if got != "1" {
			t.Errorf("job %d: %s", job, got)
		}
	}
	if len(early) != jobs {
		t.Errorf("%d jobs", len(early))
	}
	r.quiet()
}

// TestRingCanNot: what a ring can not read comes the ordinary way: places that are not on whole pages, blocks that memory has, or
// that lie in files which came after the ring.
func TestRingCanNot(t *testing.T) {
	half := func(containers []*os.File) {
		for i := range containers[:len(containers)/2] {
			_ = containers[i].Close()
			containers[i] = nil
		}
	}
	for name, x := range map[string]struct {
		shift  int
		change func([]*os.File)
	}{
		"unaligned": {100, nil},
		"new files": {0, half},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRingRig(t, direct.Options{}, x.change)
			r.load(1, After{1, 1}, x.shift, span12()...)
			r.raise(1, 1)
			if got := r.ended(1)[1]; got != twelve {
				t.Errorf("statuses %s", got)
			}
			for i := range ringBlocks {
				if !r.has(i, x.shift) {
					t.Errorf("block %d has other bytes", i)
				}
			}
			if r.store.Stats().Tiers[0].Usage.Blocks == 0 {
				t.Error("nothing came through memory")
			}
			r.wantCounted(ringBlocks, 1, ringBlocks)
			clear(r.mem)
			r.load(2, After{1, 2}, 0, span12()...) // some are in memory now, and need no word
			r.raise(1, 2)
			if got := r.ended(1)[2]; got != twelve {
				t.Errorf("once more: %s", got)
			}
			for i := range ringBlocks {
				if !r.has(i, 0) {
					t.Errorf("once more: block %d has other bytes", i)
				}
			}
			r.quiet()
		})
	}
}

// TestRingKeepsBlocks: a block that is deleted while its read waits is read all the same.
func TestRingKeepsBlocks(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	r.load(1, After{1, 1}, 0, span12()...)
	r.awaitReading()
	for i := range ringBlocks {
		if !r.store.Delete(t.Context(), "ns", keyAt(i)) {
			t.Errorf("block %d can not be deleted", i)
		}
	}
	r.raise(1, 1)
	if got := r.ended(1)[1]; got != twelve {
		t.Errorf("statuses %s", got)
	}
	for i := range ringBlocks {
		if !r.has(i, 0) {
			t.Errorf("block %d has other bytes", i)
		}
	}
	r.quiet()
}

// TestNoRing: what a client can not have.
func TestNoRing(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	attach := func(bytes int64) error {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer CloseAll(fds[0])
		_, err = r.x.AttachRing(fds[1], -1, bytes, false)
		return err
	}
	for _, bytes := range []int64{-4096, 0, 100, 4095, 1 << 60} {
		if err := attach(bytes); err == nil {
			t.Errorf("a ring of %d bytes", bytes)
		}
	}
	fd, err := unix.MemfdCreate("none", unix.MFD_CLOEXEC)
	must(t, err)
	if _, err := r.x.AttachRing(fd, -1, 4096, true); err == nil || !strings.Contains(err.Error(), "socket") {
		t.Errorf("no socket: %v", err)
	}
	r.Rings = nil
	if err := attach(4096); err != errNoDisks {
		t.Errorf("no disks: %v", err)
	}
	n, err := r.x.Attach(memfdToGive(t), -1)
	must(t, err)
	layout := layoutOf(t)
	if _, err := r.New(r.x.Region(n), "ns", []string{"k"}, layout, Options{Job: 1, After: After{1, 1}}, false); err != errNoRing {
		t.Errorf("AFTER without a ring: %v", err)
	}
	if len(r.x.regions) != 2 {
		t.Errorf("%d regions", len(r.x.regions))
	}
}
