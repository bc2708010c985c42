package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/uring"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// readsOf acquires blocks for a batch, with room for each that holds other
// bytes.
func readsOf(t *testing.T, s *opened, items []tiers.Item) []tiers.Read {
	t.Helper()
	reads := make([]tiers.Read, len(items))
	for i, it := range items {
		ref, err := s.Pin(it.Info.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(ref.Release)
		room := bytes.Repeat([]byte{0xee}, len(it.Data)+i%3*format.PageSize)
		reads[i] = tiers.Read{Pin: ref, Dst: room[:len(it.Data)], Over: i%2 == 0}
	}
	return reads
}

// wantBatch reads items and compares outcome by outcome; want tells the error
// by index, nil for all others.
func wantBatch(t *testing.T, s *opened, items []tiers.Item, want map[int]error) {
	t.Helper()
	reads := readsOf(t, s, items)
	for i, err := range s.ReadBatch(t.Context(), reads) {
		if !errors.Is(err, want[i]) {
			t.Errorf("block %d: error %v, want %v", i, err, want[i])
		}
		if err == nil && !bytes.Equal(reads[i].Dst, items[i].Data) {
			t.Errorf("block %d of %d bytes: wrong bytes", i, len(items[i].Data))
		}
		if over := reads[i].Dst[len(reads[i].Dst):cap(reads[i].Dst)]; !reads[i].Over && bytes.Count(over, []byte{0xee}) != len(over) {
			t.Errorf("block %d of %d bytes: more than its memory was written to", i, len(items[i].Data))
		}
		reads[i].Pin.Release()
	}
	settleDown(s)
	if n := len(s.reads); n != 0 {
		t.Errorf("%d I/O slots are still taken", n)
	}
}

// mixture is blocks of all sizes, also such as need several calls, put in
// several frames and files.
func mixture(t *testing.T, s *opened) []tiers.Item {
	t.Helper()
	var items []tiers.Item
	for i, size := range []int{0, 1, 512, 513, 4095, 4096, 4097, 9000, 43008, 43008, 43008, 70001, 300, maxRead - 1, maxRead, maxRead + 1, 3*maxRead + 5, 20000} {
		items = append(items, testItem(uint64(i+1), size))
	}
	for batch := range slices.Chunk(items, 5) {
		put(t, s, batch...)
	}
	return items
}

// TestReadBatch reads blocks of all sizes in any order, some of them twice, in
// every way a store can read.
func TestReadBatch(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"page cache":           func(*Options) {},
		"auto":                 func(o *Options) { o.Direct, o.Uring = Auto, Auto },
		"io_uring, page cache": func(o *Options) { o.Uring = Auto },
		"threads, direct":      func(o *Options) { o.Direct = Auto },
		"encoded":              func(o *Options) { o.Compress = true },
		"encoded, auto":        func(o *Options) { o.Compress, o.Direct, o.Uring = true, Auto, Auto },
		"few readers":          func(o *Options) { o.Readers = 2 },
		"many files":           func(o *Options) { o.SegmentBytes = 100 << 10 },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t.TempDir(), 1)
			change(&o)
			s := openStore(t, o)
			items := mixture(t, s)
			wantBatch(t, s, items, nil)
			closeStore(t, s)
			o.Incarnation = 2
			s = openStore(t, o)
			r := rand.New(rand.NewPCG(1, 1))
			for range 20 {
				var some []tiers.Item
				for range 1 + r.IntN(30) {
					some = append(some, items[r.IntN(len(items))])
				}
				wantBatch(t, s, some, nil)
			}
			wantBatch(t, s, nil, nil)
		})
	}
}

// FuzzCoalesce: every byte is read once into its own place, in calls that keep
// to the limits, in order, and no two that could be one.
func FuzzCoalesce(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add(bytes.Repeat([]byte{0, 16, 1}, 300))
	f.Add([]byte{0, 0, 255, 1, 0, 255, 0, 0, 255})
	f.Fuzz(func(t *testing.T, in []byte) {
		files := []*file{newFile(true), newFile(true)}
		files[1].id.Number = 1
		next := [2]int64{}
		var extents []wanted
		for ; len(in) >= 3; in = in[3:] {
			k := in[0] & 1
			off := next[k] + int64(in[0]>>1)*1000
			size := int64(in[1]) * int64(in[2]) * 100
			extents = append(extents, wanted{files[k], off, size, len(extents)})
			next[k] = off + size
			if in[0] == 255 { // the same place again
				next[k] = off
			}
		}
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(extents), func(i, j int) { extents[i], extents[j] = extents[j], extents[i] })
		byBlock := make([]wanted, len(extents))
		for _, e := range extents {
			byBlock[e.block] = e
		}
		covered := make([]int64, len(extents))
		var before *call
		for _, c := range coalesce(extents) {
			at := c.off
			for i, p := range c.parts {
				e := byBlock[p.block]
				at += p.gap
				if (i == 0) != (p.gap == 0) && i == 0 || p.gap < 0 || p.gap > maxGap {
					t.Fatalf("part %d has a gap of %d", i, p.gap)
				}
				if e.file != c.file || e.off+p.from != at || p.from != covered[p.block] || p.size <= 0 {
					t.Fatalf("part %+v of a call at %d belongs to %+v, of which %d bytes are covered", p, c.off, e, covered[p.block])
				}
				covered[p.block] += p.size
				at += p.size
			}
			if at != c.end() || c.size > maxRead || len(c.parts) > maxParts {
				t.Fatalf("call of %d bytes, %d parts, ends at %d of %d", c.size, len(c.parts), at, c.end())
			}
			if before != nil && before.takes(byBlock[c.parts[0].block], c.parts[0].size, len(before.parts)) && c.parts[0].from == 0 {
				t.Fatalf("two calls that could be one: %+v, %+v", before, c)
			}
			before = &c
		}
		for i, n := range covered {
			if n != byBlock[i].size {
				t.Fatalf("%d of %d bytes of a block", n, byBlock[i].size)
			}
		}
	})
}

// TestBatchCoalesces: neighbours come with one call, and those far apart do
// not.
func TestBatchCoalesces(t *testing.T) {
	trace := vfstest.NewTrace(vfs.OS{}, "/")
	o := testOptions(t.TempDir(), 1)
	o.FS = trace
	s := openStore(t, o)
	var items []tiers.Item
	for i := range 200 {
		items = append(items, testItem(uint64(i+1), 9000))
	}
	put(t, s, items...)
	trace.Take()
	for name, c := range map[string]struct {
		items []tiers.Item
		calls int
	}{
		"all":          {items, 2}, // 200 times 12 KiB in calls of 2 MiB
		"every fourth": {everyNth(items, 4), 2},
		"every 20th":   {everyNth(items, 20), 10},
		"one":          {items[:1], 1},
	} {
		wantBatch(t, s, c.items, nil)
		if n := strings.Count(trace.Take(), "read "); n != c.calls {
			t.Errorf("%s: %d calls, want %d", name, n, c.calls)
		}
	}
}

// TestBatchReadsRuns: blocks whose memory has room for the padding between them
// come as one run, without more buffers than blocks; where one has none, the
// padding goes elsewhere.
func TestBatchReadsRuns(t *testing.T) {
	t.Parallel()
	var calls [][]int // lengths of buffers
	o := testOptions(t.TempDir(), 1)
	o.FS = vfs.OS{Readv: func(_ context.Context, fd int, bufs [][]byte, off int64) (int, error) {
		var lens []int
		for _, b := range bufs {
			lens = append(lens, len(b))
		}
		calls = append(calls, lens)
		return unix.Preadv(fd, bufs, off)
	}}
	s := openStore(t, o)
	const size, room = 43008, 45056
	var items []tiers.Item
	for i := range 6 {
		items = append(items, testItem(uint64(i+1), size))
	}
	put(t, s, items...)
	memory := make([]byte, len(items)*room)
	reads := readsOf(t, s, items)
	for i := range reads {
		reads[i].Dst, reads[i].Over = memory[i*room:][:size:room], i != 3
	}
	reads[4].Dst = reads[4].Dst[: size : size+100] // less than the padding
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, err := range s.ReadBatch(ctx, reads) {
		if err != nil || !bytes.Equal(reads[i].Dst, items[i].Data) {
			t.Errorf("block %d: right: %v, error %v", i, bytes.Equal(reads[i].Dst, items[i].Data), err)
		}
	}
	want := [][]int{{room, room, room, size, room - size, size, room - size, size}}
	if !reflect.DeepEqual(calls, want) {
		t.Errorf("buffers of %v bytes, want %v", calls, want)
	}
	for _, i := range []int{3, 4} {
		if behind := memory[i*room+size:][:room-size]; bytes.Count(behind, []byte{0}) != len(behind) {
			t.Errorf("what is behind block %d was written to", i)
		}
	}
}

func everyNth(items []tiers.Item, n int) (out []tiers.Item) {
	for i := 0; i < len(items); i += n {
		out = append(out, items[i])
	}
	return out
}

// neighbours is a store whose blocks lie side by side and whose file system
// obeys rules, with and without io_uring.
func neighbours(t *testing.T, ring bool, n int) (*opened, *vfstest.Fault, []tiers.Item, string) {
	t.Helper()
	dir := t.TempDir()
	var items []tiers.Item
	for i := range n {
		items = append(items, testItem(uint64(i+1), 9000))
	}
	s := openStore(t, testOptions(dir, 1))
	put(t, s, items...)
	closeStore(t, s)
	fs := vfstest.NewFault(machine(t, ring))
	o := testOptions(dir, 2)
	o.FS = fs
	return openStore(t, o), fs, items, dir
}

// machine is the machine's file system, which reads by io_uring if ring.
func machine(t *testing.T, ring bool) vfs.OS {
	t.Helper()
	if !ring {
		return vfs.OS{}
	}
	r, err := uring.Open(8)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { r.Close(context.Background()) })
	return vfs.OS{Readv: r.Readv}
}

func eachWay(t *testing.T, test func(t *testing.T, ring bool)) {
	for name, ring := range map[string]bool{"threads": false, "io_uring": true} {
		t.Run(name, func(t *testing.T) { test(t, ring) })
	}
}

// TestBatchFaults: what goes wrong with one block is its own, however many came
// with the same call.
func TestBatchFaults(t *testing.T) {
	eachWay(t, func(t *testing.T, ring bool) {
		t.Run("one bad sector", func(t *testing.T) {
			s, fs, items, _ := neighbours(t, ring, 10)
			// The call for all fails in its fourth block, which fails alone too.
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Bytes: 3*12288 + 100, Err: vfs.ErrIO})
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Err: vfs.ErrIO})
			wantBatch(t, s, items, map[int]error{3: tiers.ErrUnavailable})
			wantBatch(t, s, items, nil)
		})
		t.Run("everything fails", func(t *testing.T) {
			s, fs, items, _ := neighbours(t, ring, 10)
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Err: vfs.ErrIO})
			all := map[int]error{}
			for i := range items {
				all[i] = tiers.ErrUnavailable
			}
			wantBatch(t, s, items, all)
			fs.Clear()
			wantBatch(t, s, items, nil)
		})
		t.Run("short file", func(t *testing.T) {
			s, _, items, dir := neighbours(t, ring, 10)
			// The sealed file loses its end from the sixth block on.
			_, at := s.where(t, items[5].Info.ID)
			if err := os.Truncate(filepath.Join(dir, segmentPath(1, 0)), at+100); err != nil {
				t.Fatal(err)
			}
			wantBatch(t, s, items, map[int]error{5: tiers.ErrCorrupt, 6: tiers.ErrCorrupt, 7: tiers.ErrCorrupt, 8: tiers.ErrCorrupt, 9: tiers.ErrCorrupt})
			_, err := s.Pin(items[5].Info.ID)
			wantErr(t, "a block behind the end", err, tiers.ErrNotFound)
			wantBatch(t, s, items[:5], nil)
		})
		t.Run("flipped bits", func(t *testing.T) {
			s, _, items, dir := neighbours(t, ring, 10)
			path := filepath.Join(dir, segmentPath(1, 0))
			file := readFile(t, path)
			for _, i := range []int{0, 7} {
				_, at := s.where(t, items[i].Info.ID)
				file[at+4444] ^= 1
			}
			writeFile(t, file, path)
			wantBatch(t, s, items, map[int]error{0: tiers.ErrCorrupt, 7: tiers.ErrCorrupt})
			_, err := s.Pin(items[7].Info.ID)
			wantErr(t, "a damaged block", err, tiers.ErrNotFound)
		})
		t.Run("stale handle", func(t *testing.T) {
			s, fs, items, _ := neighbours(t, ring, 10)
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Err: vfs.ErrStale})
			wantBatch(t, s, items, nil)
			s, fs, items, _ = neighbours(t, ring, 1)
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Err: vfs.ErrStale})
			wantBatch(t, s, items, nil)
		})
		t.Run("purged", func(t *testing.T) {
			s, _, items, dir := neighbours(t, ring, 3)
			if err := os.Remove(filepath.Join(dir, segmentPath(1, 0))); err != nil {
				t.Fatal(err)
			}
			reads := readsOf(t, s, items)
			for i, err := range s.ReadBatch(t.Context(), reads) {
				wantErr(t, fmt.Sprintf("block %d", i), err, tiers.ErrUnavailable)
			}
		})
	})
}

func TestBatchRefuses(t *testing.T) {
	s, _, items, _ := neighbours(t, false, 3)
	other, _, theirs, _ := neighbours(t, false, 1)
	reads := append(readsOf(t, s, items), readsOf(t, other, theirs)...)
	reads[1].Dst = reads[1].Dst[:8999]
	for i, want := range []error{nil, ErrBadItem, nil, ErrBadItem} {
		if err := s.ReadBatch(t.Context(), reads)[i]; !errors.Is(err, want) {
			t.Errorf("read %d: error %v, want %v", i, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.ReadBatch(ended, reads[:1])[0]
	var busy *pool.Busy
	if !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) || errors.As(err, &busy) {
		t.Errorf("a context that has ended: %v", err)
	}
}
