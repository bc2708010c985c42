package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/block"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
	"cascadekv/tiers/memory"
)

func needUring(t *testing.T) {
	t.Helper()
	f, err := os.Open("/dev/zero")
	must(t, err)
	defer f.Close()
	r, err := direct.Open([]*os.File{f}, direct.Options{Bytes: 1 << 20, Engine: gio.EngineUring})
	testneed.That(t, err == nil, "io_uring with SQPOLL and NO_MMAP", "Linux 6.10 or later, not forbidden by seccomp or kernel.io_uring_disabled")
	if err == nil {
		must(t, r.Close(t.Context()))
	}
}

// newStoreRig is newRingRig with a ring that writes.
func newStoreRig(t *testing.T, o direct.Options) *ringRig {
	t.Helper()
	r := newRingRig(t, o, nil)
	r.attach(true)
	if !r.at.ring.Writes() {
		t.Fatal("the ring does not write")
	}
	return r
}

func newKey(i int) string { return fmt.Sprint("new", i) }

// newBytes is what a store in round round puts as block i.
func newBytes(round, i int) []byte { return noise.Bytes(uint64(1000*(round+1)+i), ringBlock) }

// fill has the client's memory have blocks at their places.
func (r *ringRig) fill(round int, blocks ...int) {
	for _, i := range blocks {
		copy(r.mem[i*ringBlock:], newBytes(round, i))
	}
}

// put submits a job that stores some blocks, block i from the i-th place plus shift bytes, in two pieces.
func (r *ringRig) put(o Options, shift int, blocks ...int) {
	r.t.Helper()
	var pairs []byte
	var keys []string
	for _, i := range blocks {
		at := uint64(i*ringBlock + shift)
		for _, n := range []uint64{at, 4096, at + 4096, ringBlock - 4096} {
			pairs = binary.LittleEndian.AppendUint64(pairs, n)
		}
		keys = append(keys, newKey(i))
	}
	layout, err := region.ParseLayout(pairs, len(keys), r.at.Size())
	must(r.t, err)
	tr, err := r.New(r.at, "ns", keys, layout, o, true)
	must(r.t, err)
	if bad := r.x.Submit(tr, r.at); bad != "" {
		r.t.Fatal(bad)
	}
}

// in returns where a block lies, "" for nowhere.
func (r *ringRig) in(key string) string {
	info, _ := r.store.Stat(context.Background(), "ns", key)
	return strings.Join(info.Tiers, " ")
}

// wantStored fails unless blocks are what was put, all of them in one tier.
func (r *ringRig) wantStored(round int, tier string, blocks ...int) {
	r.t.Helper()
	for _, i := range blocks {
		if in := r.in(newKey(i)); tier != "" && in != tier {
			r.t.Errorf("block %d is in %q, want %q", i, in, tier)
		}
	}
	for _, i := range blocks {
		v, err := r.store.Get(context.Background(), "ns", newKey(i))
		if err != nil {
			r.t.Errorf("block %d: %v", i, err)
			continue
		}
		if !bytes.Equal(v.Bytes(), newBytes(round, i)) {
			r.t.Errorf("block %d has other bytes", i)
		}
		v.Release()
	}
}

// wantNone fails unless none of the blocks is there, and the disks have as much room as before.
func (r *ringRig) wantNone(used int64, blocks ...int) {
	r.t.Helper()
	for _, i := range blocks {
		if in := r.in(newKey(i)); in != "" {
			r.t.Errorf("block %d is in %s", i, in)
		}
	}
	if n := r.disks.Usage().Used; n != used {
		r.t.Errorf("%d bytes of the disks are used, want %d", n, used)
	}
}

// again closes the store, and opens one with the disks alone.
func (r *ringRig) again() {
	r.t.Helper()
	must(r.t, r.x.Close())
	must(r.t, r.store.Close(context.Background()))
	host, err := memory.Open(memory.Options{Name: "host", Bytes: 8 << 20})
	must(r.t, err)
	r.disks, err = nvme.Open(r.t.Context(), r.disk)
	must(r.t, err)
	r.store, err = cascade.Open(context.Background(), cascade.Options{Memory: []tiers.Memory{host, r.disks}, Log: slog.New(slog.DiscardHandler)})
	must(r.t, err)
}

// TestRingStore: blocks go to the disks once their word is raised, as they are then, and none of them through memory of the store. They are
// there after a restart.
func TestRingStore(t *testing.T) {
	for _, engine := range []string{gio.EngineUring, gio.EngineUser} {
		t.Run(engine, func(t *testing.T) {
			if engine == gio.EngineUring {
				needUring(t)
			}
			r := newStoreRig(t, direct.Options{Engine: engine})
			for round := range 2 {
				r.fill(5, span12()...)
				r.put(Options{Job: 1, After: After{3, uint32(round + 1)}, Replace: true, Chain: true}, 0, span12()...)
				r.awaitReading()
				r.raise(2, 100)
				if got := r.x.Collect(); len(got) != 0 || round == 0 && r.in(newKey(0)) != "" {
					t.Fatalf("it has ended before its word: %v", got)
				}
				r.fill(round, span12()...)
				r.raise(3, uint32(round+1))
				if got := r.ended(1)[1]; got != twelve {
					t.Errorf("round %d: %s", round, got)
				}
				clear(r.mem)
				if n := r.store.Stats().Tiers[0].Usage.Blocks; n != 0 {
					t.Errorf("%d blocks are in memory", n)
				}
				for i := range ringBlocks {
					info, ok := r.store.Stat(t.Context(), "ns", newKey(i))
					if !ok || !info.Dirty || info.ID != block.Sum(block.Bits128, newBytes(round, i)) || i > 0 && info.Parent != newKey(i-1) || int(info.Depth) != i {
						t.Errorf("block %d: %v, %+v", i, ok, info)
					}
				}
			}
			if st := r.store.Stats(); st.Puts != 2*ringBlocks || st.Duplicates != 0 || st.PendingIDs != 0 {
				t.Errorf("%d puts, %d duplicates, %d pending", st.Puts, st.Duplicates, st.PendingIDs)
			}
			if blocks, n := r.Stored(); blocks != 2*ringBlocks || n != 2*ringBlocks*ringBlock {
				t.Errorf("%d blocks of %d bytes are counted", blocks, n)
			}
			r.load(9, After{}, 0, 0) // an old one, as ever
			if got := r.ended(1)[9]; got != "1" || !r.has(0, 0) {
				t.Errorf("a load: %s", got)
			}
			r.wantStored(1, "nvme", span12()...)
			r.again()
			r.wantStored(1, "nvme", span12()...)
		})
	}
}

// TestRingStoreLoads: what a ring has stored it loads.
func TestRingStoreLoads(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	r.fill(0, span12()...)
	r.put(Options{Job: 1, After: After{1, 0}}, 0, span12()...)
	if got := r.ended(1)[1]; got != twelve {
		t.Fatal(got)
	}
	clear(r.mem)
	var pairs []byte
	var keys []string
	for i := range ringBlocks {
		pairs = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(pairs, uint64(i*ringBlock)), ringBlock)
		keys = append(keys, newKey(i))
	}
	layout, err := region.ParseLayout(pairs, len(keys), r.at.Size())
	must(t, err)
	tr, err := r.New(r.at, "ns", keys, layout, Options{Job: 2, After: After{1, 1}}, false)
	must(t, err)
	r.x.Submit(tr, r.at)
	r.awaitReading()
	r.raise(1, 1)
	if got := r.ended(1)[2]; got != twelve {
		t.Error(got)
	}
	for i := range ringBlocks {
		if !bytes.Equal(r.mem[i*ringBlock:][:ringBlock], newBytes(0, i)) {
			t.Errorf("block %d has other bytes", i)
		}
	}
	if n := r.store.Stats().Tiers[0].Usage.Blocks; n != 0 {
		t.Errorf("%d blocks are in memory", n)
	}
}

// TestRingStoreFaults: what the ring can not write is stored the ordinary way, counted once.
func TestRingStoreFaults(t *testing.T) {
	for name, f := range map[string]gio.Fault{"EIO": {Errno: unix.EIO}, "short": {Short: 512}} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, direct.Options{Fault: func(io gio.IO) gio.Fault {
				if io.Write && io.Index < 30 {
					return f
				}
				return gio.Fault{}
			}})
			r.fill(0, span12()...)
			r.put(Options{Job: 1, After: After{1, 0}}, 0, span12()...)
			if got := r.ended(1)[1]; got != twelve {
				t.Error(got)
			}
			memory, disks := 0, 0
			for i := range ringBlocks {
				switch in := r.in(newKey(i)); in {
				case "host":
					memory++
				case "nvme":
					disks++
				default:
					t.Errorf("block %d is in %q", i, in)
				}
			}
			if memory == 0 || disks == 0 {
				t.Errorf("%d blocks came by memory, %d by the ring", memory, disks)
			}
			if blocks, _ := r.Stored(); blocks != ringBlocks || r.store.Stats().Puts != ringBlocks {
				t.Errorf("%d blocks are counted, %d puts", blocks, r.store.Stats().Puts)
			}
			r.wantStored(0, "", span12()...)
		})
	}
}

// TestRingStoreWithoutEvent: a job whose word nobody raises, or that is cancelled, stores nothing, then or when the word is raised.
func TestRingStoreWithoutEvent(t *testing.T) {
	for name, end := range map[string]struct {
		end  func(r *ringRig)
		want string
	}{
		"too late":  {func(*ringRig) {}, strings.Repeat("0", ringBlocks)},
		"cancelled": {func(r *ringRig) { r.x.Cancel(1) }, strings.Repeat("2", ringBlocks)},
		"begun and cancelled": {func(r *ringRig) {
			r.awaitReading()
			r.x.Cancel(1)
		}, strings.Repeat("2", ringBlocks)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, direct.Options{})
			used := r.disks.Usage().Used
			if name == "too late" {
				r.patience.event = 10 * time.Millisecond
			}
			r.fill(0, span12()...)
			for _, shift := range []int{0, 100} { // by the ring, and not
				r.put(Options{Job: 1, After: After{1, 1}}, shift, span12()...)
				end.end(r)
				if got := r.ended(1)[1]; got != end.want {
					t.Errorf("%s, want %s", got, end.want)
				}
			}
			r.raise(1, 1)
			r.wantNone(used, span12()...)
			if st := r.store.Stats(); st.Puts != 0 || st.Rejected != 0 || st.Names != ringBlocks {
				t.Errorf("%+v", st)
			}
			r.patience.event = time.Minute
			r.put(Options{Job: 2, After: After{1, 1}}, 0, span12()...) // all room is there again
			if got := r.ended(1)[2]; got != twelve {
				t.Errorf("what follows: %s", got)
			}
			r.wantStored(0, "nvme", span12()...)
		})
	}
}

// TestRingStoreClientGoes: the end of a client waits for no event, and leaves neither blocks nor room that is taken.
func TestRingStoreClientGoes(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	ring := r.at.ring
	r.put(Options{Job: 1, After: After{1, 0}}, 0, 0, 1)
	if got := r.ended(1)[1]; got != "11" {
		t.Fatal(got)
	}
	for job := range int64(5) {
		r.put(Options{Job: job, After: After{1, 1}}, 0, 2, 3, 4)
	}
	must(t, r.x.Close())
	<-ring.Done()
	want := int64(ringBlocks+1) * ringBlock // both blocks are of zeros, so they are one
	for end := time.Now().Add(time.Minute); r.disks.Usage().Used != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are used, want %d", r.disks.Usage().Used, want)
		}
	}
	r.wantNone(want, 2, 3, 4)
	if used, _ := r.Budget.Usage(); used != (region.Cost{}) {
		t.Errorf("left: %+v", used)
	}
}

// TestRingStoreStalls: a disk that does not answer costs the job its patience, and its memory and room until it answers. Meanwhile nothing is
// written there.
func TestRingStoreStalls(t *testing.T) {
	stall := make(chan struct{})
	r := newStoreRig(t, direct.Options{Fault: func(io gio.IO) (f gio.Fault) {
		if io.Write && io.Index == 0 {
			f.Until = stall
		}
		return f
	}})
	r.hang(vfs.OpWrite, stall)
	r.fill(0, span12()...)
	r.put(Options{Job: 1, After: After{1, 0}}, 0, 0, 1)
	if got := r.ended(1)[1]; got != "33" {
		t.Errorf("statuses %s", got)
	}
	r.put(Options{Job: 2, After: After{1, 0}}, 0, 2)
	if got := r.ended(1)[2]; got != "1" {
		t.Errorf("while the disk is left alone: %s", got)
	}
	r.wantStored(0, "host", 2)
	if in := r.in(newKey(0)) + r.in(newKey(1)); in != "" {
		t.Errorf("what did not end is in %s", in)
	}
	if st := r.store.Stats(); st.Puts != 1 || st.Tiers[1].Errors == 0 {
		t.Errorf("%d puts, %d errors", st.Puts, st.Tiers[1].Errors)
	}
	r.fs.Clear()
	close(stall)
	r.late.Add(int64(residency.ColdRetry))
	r.patience.disk = time.Minute
	r.awaitBatch()
	r.put(Options{Job: 3, After: After{1, 0}}, 0, 0, 1, 3)
	if got := r.ended(1)[3]; got != "111" {
		t.Errorf("later: %s", got)
	}
	r.wantStored(0, "nvme", 0, 1, 3)
}

// TestRingStoreStallsAtTheEnd: the room of a write under way stays taken when its client goes, until the disk answers.
func TestRingStoreStallsAtTheEnd(t *testing.T) {
	stall, begun := make(chan struct{}), make(chan struct{})
	r := newStoreRig(t, direct.Options{Fault: func(io gio.IO) (f gio.Fault) {
		if io.Index == 0 {
			close(begun)
			f.Until = stall
		}
		return f
	}})
	used := r.disks.Usage().Used
	r.patience = ringPatience{time.Minute, 20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond}
	ring := r.at.ring
	r.put(Options{Job: 1, After: After{1, 0}}, 0, span12()...)
	<-begun
	if err := r.x.Close(); !errors.Is(err, gio.ErrBusy) {
		t.Errorf("the end: %v", err)
	}
	if r.disks.Usage().Used != used {
		t.Error("the room of a write under way is given back")
	}
	close(stall)
	<-ring.Done()
	for end := time.Now().Add(time.Minute); r.disks.Usage().Used != ringBlocks*ringBlock; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are used", r.disks.Usage().Used)
		}
	}
}

// TestRingStoreCanNot: what a ring can not write is stored the ordinary way once the word has come, and not before.
func TestRingStoreCanNot(t *testing.T) {
	for name, x := range map[string]struct {
		shift int
		make  func(t *testing.T) *ringRig
	}{
		"unaligned":     {100, func(t *testing.T) *ringRig { return newStoreRig(t, direct.Options{}) }},
		"it only reads": {0, func(t *testing.T) *ringRig { return newRingRig(t, direct.Options{}, nil) }},
		"no budget": {0, func(t *testing.T) *ringRig {
			r := newStoreRig(t, direct.Options{})
			r.store.SetLimits(cascade.Limits{DeepWriteRate: 1})
			r.fill(7, 11)
			r.put(Options{Job: 1, After: After{2, 0}}, 0, 11) // uses it up, and more
			r.ended(1)
			if in := r.in(newKey(11)); in != "nvme" {
				r.t.Fatalf("the first one is in %q", in)
			}
			return r
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := x.make(t)
			puts := r.store.Stats().Puts
			r.put(Options{Job: 1, After: After{1, 1}}, x.shift, span(0, 11)...)
			r.awaitReading()
			for i := range 11 {
				copy(r.mem[i*ringBlock+x.shift:], newBytes(0, i))
			}
			r.raise(1, 1)
			if got := r.ended(1)[1]; got != twelve[1:] {
				t.Error(got)
			}
			r.wantStored(0, "host", span(0, 11)...)
			if st := r.store.Stats(); st.Puts != puts+11 {
				t.Errorf("%d puts", st.Puts-puts)
			}
		})
	}
}

// TestRingStoreTooMany: what finds no free batch is stored once its word has come.
func TestRingStoreTooMany(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	r.fill(0, span12()...)
	const jobs = 40 // more than a ring has batches
	for job := range int64(jobs) {
		r.put(Options{Job: job, After: After{1, 1}, Replace: true}, 0, int(job)%ringBlocks)
	}
	r.awaitReading()
	if got := r.x.Collect(); len(got) > 0 {
		t.Errorf("ended early: %v", got)
	}
	r.raise(1, 1)
	for job, got := range r.ended(jobs) {
		if got != "1" {
			t.Errorf("job %d: %s", job, got)
		}
	}
	r.wantStored(0, "", span12()...)
}

// TestRingStoreMeanwhile: what others store while a job waits, under the same names or of the same bytes, is as if it had been stored before; and what
// is stored already is not written.
func TestRingStoreMeanwhile(t *testing.T) {
	var writes atomic.Int64
	r := newStoreRig(t, direct.Options{Fault: func(io gio.IO) gio.Fault {
		if io.Write {
			writes.Add(1)
		}
		return gio.Fault{}
	}})
	set := func(key string, p []byte) {
		_, err := r.store.Put(t.Context(), cascade.Entry{Namespace: "ns", Key: key}, p, nil)
		must(t, err)
	}
	r.fill(0, span12()...)
	set(newKey(0), newBytes(0, 0))
	r.put(Options{Job: 1, After: After{1, 1}}, 0, 0, 1, 2, 3)
	r.awaitReading()
	other := newBytes(9, 1)
	set(newKey(1), other)          // the same name with the same size: what the name stands for counts
	set("another", newBytes(0, 2)) // the same bytes
	r.raise(1, 1)
	if got := r.ended(1)[1]; got != "1111" {
		t.Error(got)
	}
	r.wantStored(0, "host", 0, 2)
	r.wantStored(0, "nvme", 3)
	v, err := r.store.Get(t.Context(), "ns", newKey(1))
	must(t, err)
	if !bytes.Equal(v.Bytes(), other) {
		t.Error("the name has other bytes than were put first")
	}
	v.Release()
	if st := r.store.Stats(); st.Puts != 5 || st.Duplicates != 1 {
		t.Errorf("%d puts, %d duplicates", st.Puts, st.Duplicates)
	}
	if n := writes.Load(); n < 3 || n%3 != 0 {
		t.Errorf("%d writes for three blocks", n)
	}
	must(t, r.disks.Sync(t.Context()))
	room := r.disks.Usage()
	before := writes.Load()
	r.put(Options{Job: 2, After: After{1, 1}}, 0, 0, 1, 2, 3)
	if got := r.ended(1)[2]; got != "1111" || writes.Load() != before {
		t.Errorf("what is stored: %s, %d writes", got, writes.Load()-before)
	}
	if now := r.disks.Usage(); now != room {
		t.Errorf("%+v, before it was %+v", now, room)
	}
	// Twice in one job, by name and by content.
	copy(r.mem[6*ringBlock:], newBytes(0, 5))
	r.put(Options{Job: 3, After: After{1, 1}}, 0, 5, 5, 6)
	if got := r.ended(1)[3]; got != "111" {
		t.Errorf("twice: %s", got)
	}
	r.wantStored(0, "nvme", 5)
	if b := r.disks.Usage().Blocks; b != room.Blocks+1 {
		t.Errorf("%d blocks more, want one", b-room.Blocks)
	}
}

// TestRingStoreFull: what the ring has no room for goes by memory; room comes free as its blocks leave.
func TestRingStoreFull(t *testing.T) {
	r := newStoreRig(t, direct.Options{})
	const all = 40 // of which 32 have room
	inDisks := 0
	for i := range all {
		copy(r.mem, newBytes(0, i))
		var pairs []byte
		for _, n := range []uint64{0, ringBlock} {
			pairs = binary.LittleEndian.AppendUint64(pairs, n)
		}
		layout, err := region.ParseLayout(pairs, 1, r.at.Size())
		must(t, err)
		tr, err := r.New(r.at, "ns", []string{newKey(i)}, layout, Options{Job: 1, After: After{1, 0}}, true)
		must(t, err)
		r.x.Submit(tr, r.at)
		if got := r.ended(1)[1]; got != "1" {
			t.Errorf("block %d: %s", i, got)
		}
		if r.in(newKey(i)) == "nvme" {
			inDisks++
		}
	}
	if inDisks != 32 {
		t.Errorf("%d blocks went by the ring", inDisks)
	}
	r.wantStored(0, "", span(0, all)...)
	for i := range 4 {
		r.store.Delete(t.Context(), "ns", newKey(i))
	}
	must(t, r.disks.Sync(t.Context()))
	r.fill(3, 1)
	r.put(Options{Job: 1, After: After{1, 0}}, 0, 1)
	if got := r.ended(1)[1]; got != "1" {
		t.Error(got)
	}
	r.wantStored(3, "nvme", 1)
	r.wantStored(0, "", span(4, all)...)
}
