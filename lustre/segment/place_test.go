package segment

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// ranks opens two stores over one directory; the second has found nothing in
// it, and its file system obeys rules and leaves a trace.
func ranks(t *testing.T, change func(owner, other *Options)) (owner, other *opened, fs *vfstest.Fault, trace *vfstest.Trace, dir string) {
	t.Helper()
	dir = t.TempDir()
	trace = vfstest.NewTrace(vfs.OS{}, dir)
	fs = vfstest.NewFault(trace)
	a, b := testOptions(dir, 1), testOptions(dir, 2)
	b.Rank, b.FS = 4, fs
	if change != nil {
		change(&a, &b)
	}
	owner, other = openStore(t, a), openStore(t, b)
	trace.Take()
	return owner, other, fs, trace, dir
}

func placeOf(t *testing.T, s *opened, it tiers.Item) tiers.Segment {
	t.Helper()
	p, err := s.Segment(it.Info.ID)
	if err != nil {
		t.Fatalf("Place: %v", err)
	}
	return p
}

// byPlaces are the ways to read a block by its place.
var byPlaces = map[string]func(ctx context.Context, s *opened, p tiers.Segment, it tiers.Item, dst []byte) error{
	"alone": func(ctx context.Context, s *opened, p tiers.Segment, it tiers.Item, dst []byte) error {
		return s.ReadSegment(ctx, p, it.Info, dst)
	},
	"in a batch": func(ctx context.Context, s *opened, p tiers.Segment, it tiers.Item, dst []byte) error {
		return s.ReadBatch(ctx, []tiers.Read{{At: p, Info: it.Info, Dst: dst}})[0]
	},
}

func wantPlace(t *testing.T, s *opened, p tiers.Segment, it tiers.Item) {
	t.Helper()
	for way, read := range byPlaces {
		dst := bytes.Repeat([]byte{0xee}, len(it.Data))
		if err := read(t.Context(), s, p, it, dst); err != nil || !bytes.Equal(dst, it.Data) {
			t.Errorf("block of %d bytes at %+v, %s: right bytes: %v, error %v", it.Info.Size, p, way, bytes.Equal(dst, it.Data), err)
		}
	}
}

func wantNoPlace(t *testing.T, what string, s *opened, p tiers.Segment, it tiers.Item, want error) {
	t.Helper()
	for way, read := range byPlaces {
		wantErr(t, what+", "+way, read(t.Context(), s, p, it, make([]byte, it.Info.Size)), want)
	}
}

// variety is items of all the ways to lie in a frame.
func variety() []tiers.Item {
	var items []tiers.Item
	for i, size := range []int{0, 1, 500, 512, 513, 4096, 9000, 70000} {
		items = append(items, testItem(uint64(i+1), size, testName(string(rune('a'+i)), uint64(i+1))))
	}
	return items
}

// TestReadPlace reads another rank's blocks while their segment is open for
// more, when it is sealed, and by the places that the owner's next
// incarnations tell: from a footer and from frames.
func TestReadPlace(t *testing.T) {
	for name, compress := range map[string]bool{"as they are": false, "encoded": true} {
		t.Run(name, func(t *testing.T) { readPlaces(t, func(owner, _ *Options) { owner.Compress = compress }) })
	}
}

func readPlaces(t *testing.T, change func(owner, other *Options)) {
	owner, other, _, _, dir := ranks(t, change)
	items := variety()
	early := map[int]tiers.Segment{}
	for i, it := range items {
		put(t, owner, it)
		early[i] = placeOf(t, owner, it)
		wantPlace(t, other, early[i], it)
	}
	batch := []tiers.Item{testItem(50, 300), testItem(51, 20000, testName("x", 1)), testItem(52, 10), testItem(53, 8192)}
	put(t, owner, batch...)
	for _, it := range batch {
		wantPlace(t, other, placeOf(t, owner, it), it)
	}
	next := openStore(t, testOptions(dir, 3)) // reads the frames: nothing is sealed
	closeStore(t, owner)
	last := openStore(t, testOptions(dir, 4)) // reads the footer
	for i, it := range append(items, batch...) {
		p, found := placeOf(t, next, it), placeOf(t, last, it)
		if was, ok := early[i]; found != p || ok && was != p {
			t.Errorf("found at %+v by its frame and at %+v by the footer, was written at %+v", p, found, was)
		}
		wantPlace(t, other, p, it)
	}
}

// TestReadPlaceIsOneCall: of a file that is open, the payload alone is read; of
// neighbours in a batch, all with one call.
func TestReadPlaceIsOneCall(t *testing.T) {
	owner, other, _, trace, _ := ranks(t, nil)
	items := []tiers.Item{testItem(1, 9000), testItem(2, 9000), testItem(3, 9000)}
	put(t, owner, items...)
	var reads []tiers.Read
	for _, it := range items {
		reads = append(reads, tiers.Read{At: placeOf(t, owner, it), Info: it.Info, Dst: make([]byte, len(it.Data))})
	}
	wantPlace(t, other, reads[0].At, items[0])
	settleDown(other)
	trace.Take()
	calls := func(what string, read func() error) {
		t.Helper()
		if err := read(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if ops := trace.Take(); strings.Contains(ops, "\n") || !strings.HasPrefix(ops, "read ") {
			t.Errorf("%s takes\n%s", what, ops)
		}
	}
	calls("a block", func() error { return other.ReadSegment(t.Context(), reads[1].At, reads[1].Info, reads[1].Dst) })
	calls("a batch", func() error { return errors.Join(other.ReadBatch(t.Context(), reads)...) })
}

// TestReadPlaceNeverTakesAnother: a place that is not this block's is refused,
// whatever is there.
func TestReadPlaceNeverTakesAnother(t *testing.T) {
	owner, other, _, _, _ := ranks(t, nil)
	a, b := testItem(1, 9000), testItem(2, 9000)
	put(t, owner, a, b)
	pa, pb := placeOf(t, owner, a), placeOf(t, owner, b)
	wantNoPlace(t, "another's place", other, pb, a, tiers.ErrNotFound)
	at := func(off int64) tiers.Segment { return placed(format.Plain(a.Info), pa.Path, off) }
	for d := int64(-96); d <= 96; d += 8 {
		if d != 0 {
			wantNoPlace(t, "a place beside", other, at(pa.Offset+d), a, tiers.ErrCorrupt)
		}
	}
	wantNoPlace(t, "where the other is", other, at(pb.Offset), a, tiers.ErrCorrupt)
	wantNoPlace(t, "behind the end", other, at(1<<40), a, tiers.ErrCorrupt)
	wantNoPlace(t, "far behind the end", other, at(maxOffset+1), a, tiers.ErrNotFound)
	for _, off := range []int64{format.PageSize - 1, 0, -1, math.MinInt64} {
		wantNoPlace(t, "in the header page, or before it", other, at(off), a, tiers.ErrNotFound)
	}
	for what, change := range map[string]func(*block.Info, *tiers.Segment){
		"size":                       func(i *block.Info, _ *tiers.Segment) { i.Size-- },
		"checksum":                   func(i *block.Info, _ *tiers.Segment) { i.CRC ^= 1 },
		"stored size":                func(_ *block.Info, p *tiers.Segment) { p.Stored++ },
		"stored checksum":            func(_ *block.Info, p *tiers.Segment) { p.StoredCRC ^= 1 },
		"size, encoded":              func(_ *block.Info, p *tiers.Segment) { p.Codec = 1 },
		"size, encoded to nothing":   func(_ *block.Info, p *tiers.Segment) { p.Codec, p.Stored = 1, 0 },
		"size, encoded to below":     func(_ *block.Info, p *tiers.Segment) { p.Codec, p.Stored = 1, -1 },
		"id, which is not known yet": func(i *block.Info, _ *tiers.Segment) { i.ID = block.Provisional(7) },
		"id, which is none":          func(i *block.Info, _ *tiers.Segment) { i.ID = block.ID{} },
	} {
		it, p := b, pb
		change(&it.Info, &p)
		wantNoPlace(t, "another "+what, other, p, it, tiers.ErrNotFound)
	}
	it, p := b, pb
	it.Info.CRC, p.StoredCRC = 1, 1
	wantNoPlace(t, "another checksum", other, p, it, tiers.ErrCorrupt)
	for _, number := range []uint8{1, 2, 3, 4, 255} {
		p := pb
		p.Codec, p.Stored, p.StoredCRC = number, 4000, block.CRC(b.Data[:4000])
		wantNoPlace(t, "a part of the bytes, as if encoded", other, p, b, tiers.ErrCorrupt)
	}
	wantErr(t, "room of another size", other.ReadSegment(t.Context(), pb, b.Info, make([]byte, 8999)), ErrBadItem)
	wantPlace(t, other, pb, b)
}

// TestReadPlacePaths: nothing but the names of segments is ever opened.
func TestReadPlacePaths(t *testing.T) {
	owner, other, _, trace, dir := ranks(t, nil)
	it := testItem(1, 9000)
	put(t, owner, it)
	good := placeOf(t, owner, it)
	name, incarnation := filepath.Base(good.Path), filepath.Dir(good.Path)
	at := func(path string) tiers.Segment { p := good; p.Path = path; return p }
	for _, path := range []string{
		"", ".", "..", "/", "/etc/passwd", "../" + good.Path, "./" + good.Path, "/" + good.Path, incarnation,
		incarnation + "/", incarnation + "//" + name, incarnation + "/./" + name, incarnation + "/../" + good.Path,
		"../" + filepath.Base(dir) + "/" + good.Path, good.Path + "\x00", good.Path + "/", good.Path + ".tmp", name,
		"rank003-0000000000000001/agg_rank004_000000.bin", "rank3-0000000000000001/agg_rank003_000000.bin",
		"rank003-1/agg_rank003_000000.bin", "rank003-0000000000000001/agg_rank003_0.bin", "rank003-0000000000000001/agg_rank003_-00001.bin",
	} {
		wantNoPlace(t, "path "+path, other, at(path), it, tiers.ErrNotFound)
	}
	settleDown(other)
	if ops := trace.Take(); ops != "" {
		t.Errorf("refused paths led to\n%s", ops)
	}
	if err := os.Symlink(filepath.Join(dir, good.Path), filepath.Join(dir, incarnation, "agg_rank003_000007.bin")); err != nil {
		t.Fatal(err)
	}
	link := good
	link.Path = incarnation + "/agg_rank003_000007.bin"
	wantNoPlace(t, "a symbolic link", other, link, it, tiers.ErrUnavailable)
	writeFile(t, readFile(t, dir, good.Path), dir, incarnation, "agg_rank003_000008.bin")
	link.Path = incarnation + "/agg_rank003_000008.bin"
	wantNoPlace(t, "a file under another's name", other, link, it, tiers.ErrCorrupt)
	wantPlace(t, other, good, it)
}

// TestReadPlaceDamage: what was flipped or cut is never taken for the block.
func TestReadPlaceDamage(t *testing.T) {
	owner, other, _, _, dir := ranks(t, nil)
	items := []tiers.Item{testItem(1, 300), testItem(2, 9000)}
	put(t, owner, items...)
	path := placeOf(t, owner, items[0]).Path
	whole := readFile(t, dir, path)
	for _, it := range items {
		p := placeOf(t, owner, it)
		end := p.Offset + p.Stored
		for what, at := range map[string]int64{"header": 40, "first byte": p.Offset, "last byte": end - 1} {
			bad := bytes.Clone(whole)
			bad[at] ^= 4
			writeFile(t, bad, dir, path)
			expire(other)
			wantNoPlace(t, what+" flipped", other, p, it, tiers.ErrCorrupt)
		}
		for _, n := range []int64{0, 100, format.PageSize, p.Offset, end - 1} {
			writeFile(t, whole[:n], dir, path)
			expire(other)
			wantNoPlace(t, "cut file", other, p, it, tiers.ErrCorrupt)
		}
		writeFile(t, whole, dir, path)
		wantPlace(t, other, p, it)
	}
}

// TestReadPlaceOfATornWrite: a part of a payload is no block; and what was durable
// before it stays one.
func TestReadPlaceOfATornWrite(t *testing.T) {
	for _, written := range []int64{format.PageSize, format.PageSize + 100, format.PageSize + 8192, format.PageSize + 8999} {
		owner, fs, dir := faulty(t, nil)
		o := testOptions(dir, 2)
		o.Rank = 4
		other := openStore(t, o)
		before, torn := testItem(1, 9000), testItem(2, 9000)
		put(t, owner, before)
		p := placeOf(t, owner, before)
		fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Err: vfs.ErrIO, Bytes: written})
		wantErr(t, "Put", owner.Put(t.Context(), torn), tiers.ErrUnavailable)
		_, frame := format.FrameSize(blocksOf([]tiers.Item{before}), nil)
		wantNoPlace(t, "a torn write", other, placed(format.Plain(torn.Info), p.Path, p.Offset+frame), torn, tiers.ErrCorrupt)
		wantPlace(t, other, p, before)
		put(t, owner, torn) // elsewhere
		wantPlace(t, other, placeOf(t, owner, torn), torn)
	}
}

// expire closes what a store keeps open.
func expire(s *opened) {
	for s.handles.CloseOldest() {
	}
}

// TestReadPlaceWhileWritten: a rank reads what another writes, seals and gives
// up, each block by the place it was told of, at any time.
func TestReadPlaceWhileWritten(t *testing.T) {
	owner, other, _, _, _ := ranks(t, func(a, _ *Options) { a.SegmentBytes = 128 << 10 })
	type told struct {
		it tiers.Item
		at tiers.Segment
	}
	places := make(chan told, 1000)
	var read, missed atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for w := range places {
				dst := make([]byte, w.it.Info.Size)
				switch err := other.ReadSegment(t.Context(), w.at, w.it.Info, dst); {
				case err == nil && bytes.Equal(dst, w.it.Data):
					read.Add(1)
				case errors.Is(err, tiers.ErrNotFound):
					missed.Add(1)
				default:
					t.Errorf("ReadPlace: right bytes: %v, error %v", bytes.Equal(dst, w.it.Data), err)
				}
			}
		})
	}
	var kept []told
	for i := range 120 {
		it := testItem(uint64(i+1), 100+i*97)
		put(t, owner, it)
		w := told{it, placeOf(t, owner, it)}
		kept = append(kept, w)
		places <- w
		if i >= 40 {
			if err := owner.Evict(kept[i-40].it.Info.ID); err != nil {
				t.Error(err)
			}
			places <- kept[i-40]
		}
	}
	close(places)
	wg.Wait()
	if read.Load() < 120 {
		t.Errorf("%d blocks read, %d missed", read.Load(), missed.Load())
	}
	for _, w := range kept[80:] {
		if err := owner.Evict(w.it.Info.ID); err != nil {
			t.Error(err)
		}
	}
	closeStore(t, owner)
	expire(other)
	wantNoPlace(t, "an unlinked segment", other, kept[0].at, kept[0].it, tiers.ErrNotFound)
}

// TestHandlesAreBounded: in number, in time, and none is left open.
func TestHandlesAreBounded(t *testing.T) {
	now := atomic.Int64{}
	owner, other, _, trace, dir := ranks(t, func(a, b *Options) {
		a.SegmentBlocks = 1
		b.OpenFiles, b.Now = 2, func() time.Time { return time.Unix(now.Load(), 0) }
	})
	items := []tiers.Item{testItem(1, 900), testItem(2, 900), testItem(3, 900)}
	var places []tiers.Segment
	for _, it := range items {
		put(t, owner, it)
		places = append(places, placeOf(t, owner, it))
	}
	ops := func(op string) int {
		settleDown(other)
		return bytes.Count([]byte(trace.Take()), []byte(op+" "))
	}
	for range 3 {
		wantPlace(t, other, places[0], items[0])
		wantPlace(t, other, places[1], items[1])
	}
	if n := ops("open"); n != 2 {
		t.Errorf("%d opens for two files", n)
	}
	now.Add(1)
	wantPlace(t, other, places[2], items[2])
	if n := ops("close"); n != 1 || other.handles.Len() != 2 {
		t.Errorf("%d closes, %d files open, bound 2", n, other.handles.Len())
	}
	now.Add(int64(other.opt.KeepOpen/time.Second) - 1)
	other.handles.Sweep()
	if n := ops("close"); n != 1 || other.handles.Len() != 1 {
		t.Errorf("%d closes, %d files open after the time of one is up", n, other.handles.Len())
	}
	if err := os.Remove(filepath.Join(dir, places[2].Path)); err != nil {
		t.Fatal(err)
	}
	wantPlace(t, other, places[2], items[2]) // it is still open
	now.Add(1)
	wantNoPlace(t, "an unlinked file whose time is up", other, places[2], items[2], tiers.ErrNotFound)
	if n := ops("close"); n != 1 || other.handles.Len() != 0 {
		t.Errorf("%d closes, %d files open", n, other.handles.Len())
	}
	wantPlace(t, other, places[0], items[0])
	closeStore(t, other)
	if n := ops("close"); n != 1 {
		t.Errorf("%d closes with the store", n)
	}
	wantNoPlace(t, "a closed store", other, places[0], items[0], tiers.ErrClosed)
}

// TestReadPlaceErrors: errors of the file system are no verdict on the block.
func TestReadPlaceErrors(t *testing.T) {
	owner, other, fs, _, _ := ranks(t, nil)
	it := testItem(1, 9000)
	put(t, owner, it)
	p := placeOf(t, owner, it)
	for name, r := range map[string]vfstest.Rule{
		"open":        {Op: vfs.OpOpen, Err: vfs.ErrIO},
		"read header": {Op: vfs.OpRead, Err: vfs.ErrIO},
		"read bytes":  {Op: vfs.OpRead, After: 1, Bytes: 100, Err: vfs.ErrIO},
		"stale twice": {Op: vfs.OpRead, After: 1, Err: vfs.ErrStale},
	} {
		expire(other)
		fs.Add(r)
		wantNoPlace(t, name, other, p, it, tiers.ErrUnavailable)
		fs.Clear()
		wantPlace(t, other, p, it)
	}
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Err: vfs.ErrStale})
	wantPlace(t, other, p, it)
}

// TestReadPlaceObeysItsContext: a server that hangs costs a caller its deadline
// and no more, in each call to the file system.
func TestReadPlaceObeysItsContext(t *testing.T) {
	for name, r := range map[string]vfstest.Rule{
		"open": {Op: vfs.OpOpen}, "header": {Op: vfs.OpRead}, "bytes": {Op: vfs.OpRead, After: 1},
	} {
		t.Run(name, func(t *testing.T) {
			owner, other, fs, _, _ := ranks(t, nil)
			it := testItem(1, 9000)
			put(t, owner, it)
			p := placeOf(t, owner, it)
			server := make(chan struct{})
			r.Block = server
			fs.Add(r)
			dst := make([]byte, 9000)
			err := other.ReadSegment(fs.UntilHung(t.Context(), 1), p, it.Info, dst)
			var busy *pool.Busy
			if !errors.As(err, &busy) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Fatalf("error %v", err)
			}
			select {
			case <-busy.Done():
				t.Error("done while the server hangs")
			default:
			}
			close(server)
			<-busy.Done()
			wantPlace(t, other, p, it)
		})
	}
}

// FuzzPlaceFile: the only paths accepted are those that Place gives.
func FuzzPlaceFile(f *testing.F) {
	f.Add(segmentPath(1, 0))
	f.Add("../" + segmentPath(1, 0))
	f.Add("rank003-0000000000000001/agg_rank003_+00000.bin")
	f.Fuzz(func(t *testing.T, path string) {
		id, ok := format.ParsePath(path)
		if !ok {
			return
		}
		if want := id.Path(); path != want || !filepath.IsLocal(path) {
			t.Errorf("%q is accepted as %q", path, want)
		}
	})
}
