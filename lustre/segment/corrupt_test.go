package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// flips is how many bits TestSilentCorruption flips.
const flips = 10000

// region is what a byte of a segment is for.
type region int

const (
	inHeader  region = iota // the header page
	inFrame                 // header and entry table of a frame
	inInline                // the payload of a small block, in a table
	inPayload               // the payload of any other block
	inFooter                // footer and trailer
	inPadding               // zeros that nothing reads
	regions
)

func (r region) String() string {
	return [...]string{"header page", "frame header or table", "inline payload", "payload", "footer or trailer", "padding"}[r]
}

// span is a run of bytes of one kind.
type span struct {
	region
	from, to int64
	block    int // index of the block whose payload it is
	frame    int // of all but header page and footer
}

// specimen is one segment with everything that is known about it.
type specimen struct {
	path    string
	sealed  bool
	items   []tiers.Item
	places  []tiers.Segment
	spans   []span
	synced  int // frames whose payloads recovery takes for durable
	encoded int // blocks
	fs      *vfstest.Crash
}

// newSpecimen writes a segment with blocks of every shape.
func newSpecimen(t *testing.T, seed uint64, sealed bool) *specimen {
	t.Helper()
	fs := vfstest.NewCrash()
	o := crashOptions(fs, 1)
	o.SegmentBytes = 1 << 20
	s := openStore(t, o)
	sp := &specimen{sealed: sealed, fs: fs}
	frames := []int64{format.PageSize}
	var heads []int64
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range 8 {
		var batch []tiers.Item
		for j := range 1 + rng.IntN(5) {
			size := []int{0, 1, 28, 500, 512, 513, 4096, 5000, 9000, 13000}[rng.IntN(10)]
			batch = append(batch, testItem(seed*1000+uint64(i*10+j), size, testName(fmt.Sprint(i, "/", j), uint64(i*10+j+1))))
		}
		batch = slices.CompactFunc(batch, func(a, b tiers.Item) bool { return a.Info == b.Info })
		batch = slices.DeleteFunc(batch, func(it tiers.Item) bool { _, err := s.Segment(it.Info.ID); return err == nil })
		if len(batch) == 0 {
			batch = []tiers.Item{testItem(seed*1000+uint64(i*10+9), 700)}
		}
		seen := map[[32]byte]bool{}
		batch = slices.DeleteFunc(batch, func(it tiers.Item) bool { old := seen[it.Info.ID]; seen[it.Info.ID] = true; return old })
		headLen, _ := format.FrameSize(blocksOf(batch), nil)
		heads = append(heads, headLen)
		put(t, s, batch...)
		frames = append(frames, s.current.w.Off)
		for _, it := range batch {
			sp.items = append(sp.items, it)
			sp.places = append(sp.places, placeOf(t, s, it))
			sp.addPayload(s, it, i)
		}
	}
	sp.synced = len(heads) - 1
	if sealed {
		closeStore(t, s)
	}
	sp.path = fs.Files()[0]
	sp.fs = fs.After(vfstest.CutProcess, 0)
	sp.addTables(frames, heads, s, sizeOf(t, fs))
	return sp
}

func (sp *specimen) addPayload(s *opened, it tiers.Item, frame int) {
	off := sp.places[len(sp.places)-1].Offset
	as := s.Store.blocks[it.Info.ID].as
	r := inPayload
	if as.Inline() {
		r = inInline
	}
	if as.Codec != codec.None {
		sp.encoded++
	}
	if it.Info.Size > 0 {
		sp.spans = append(sp.spans, span{r, off, off + as.Size, len(sp.items) - 1, frame})
	}
}

// addTables adds what is no payload: first the parts of the format, then, in
// what is left, padding.
func (sp *specimen) addTables(frames, heads []int64, s *opened, size int64) {
	sp.spans = append(sp.spans, span{inHeader, 0, format.PageSize, -1, -1})
	for i, head := range heads {
		sp.addGaps(inFrame, frames[i], frames[i]+head, i)
		sp.addGaps(inPadding, frames[i], frames[i+1], i)
	}
	if sp.sealed {
		sp.spans = append(sp.spans, span{inFooter, frames[len(heads)], size, -1, -1})
	}
}

// addGaps gives what has no span yet between from and to to r.
func (sp *specimen) addGaps(r region, from, to int64, frame int) {
	slices.SortFunc(sp.spans, func(a, b span) int { return int(a.from - b.from) })
	at := from
	var gaps []span
	for _, have := range sp.spans {
		if have.to <= at || have.from >= to {
			continue
		}
		if have.from > at {
			gaps = append(gaps, span{r, at, have.from, -1, frame})
		}
		at = have.to
	}
	if at < to {
		gaps = append(gaps, span{r, at, to, -1, frame})
	}
	sp.spans = append(sp.spans, gaps...)
}

// hurt is which blocks a flip in sp may cost.
func (sp *specimen) hurt(at span) map[int]bool {
	out := map[int]bool{}
	for i := range sp.items {
		frame := sp.frameOf(i)
		switch at.region {
		case inHeader:
			out[i] = true // the file is refused
		case inInline, inPayload:
			// An unsealed segment's frame fails its checksum, or is not known
			// to have been durable: the scan ends there.
			ends := !sp.sealed && (at.region == inInline || at.frame >= sp.synced) && frame >= at.frame
			out[i] = i == at.block || ends
		case inFrame:
			out[i] = !sp.sealed && frame >= at.frame
		}
	}
	return out
}

func (sp *specimen) frameOf(item int) int {
	for _, s := range sp.spans {
		if s.block == item {
			return s.frame
		}
	}
	// An empty block has no bytes: the end of its entry, where they would be, tells.
	for _, s := range sp.spans {
		if s.region == inFrame && s.from < sp.places[item].Offset && sp.places[item].Offset <= s.to {
			return s.frame
		}
	}
	panic("a block without a frame")
}

// judge opens a damaged copy and reads every block by the index and by its
// place. Blocks that are hurt must be misses, the others right.
func (sp *specimen) judge(t *testing.T, where string, damaged *vfstest.Crash, hurt map[int]bool) {
	t.Helper()
	s := openStore(t, crashOptions(damaged, 7))
	defer closeStore(t, s)
	for i, it := range sp.items {
		got, err := read(t.Context(), s, it)
		switch right := err == nil && bytes.Equal(got, it.Data); {
		case err == nil && !right:
			t.Errorf("%s: wrong bytes of block %d", where, i)
		case right == hurt[i]:
			t.Errorf("%s: block %d is read: %v, hurt: %v, error %v", where, i, right, hurt[i], err)
		case err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrCorrupt):
			t.Errorf("%s: block %d: %v", where, i, err)
		}
		dst := make([]byte, it.Info.Size)
		err = s.ReadSegment(t.Context(), sp.places[i], it.Info, dst)
		if err == nil && !bytes.Equal(dst, it.Data) || err != nil && !errors.Is(err, tiers.ErrCorrupt) {
			t.Errorf("%s: block %d by its place: %v", where, i, err)
		}
	}
	for key, id := range s.names {
		if !slices.ContainsFunc(sp.items, func(it tiers.Item) bool {
			return it.Info.ID == id && slices.ContainsFunc(it.Names, func(n block.Name) bool { return n.Key == key })
		}) {
			t.Errorf("%s: a name %q that nobody wrote, of %v", where, key, id)
		}
	}
	for id, info := range s.blocks {
		if !slices.ContainsFunc(sp.items, func(it tiers.Item) bool { return it.Info.ID == id && it.Info == info }) {
			t.Errorf("%s: a block that nobody wrote: %+v", where, info)
		}
	}
}

// flip damages a copy at a random bit of the span.
func (sp *specimen) flip(t *testing.T, fs *vfstest.Crash, at span, rng *rand.Rand) int64 {
	t.Helper()
	off := at.from + rng.Int64N(at.to-at.from)
	if err := fs.Flip(sp.path, off, 1<<rng.IntN(8)); err != nil {
		t.Fatal(err)
	}
	return off
}

// TestSilentCorruption flips single bits in sealed and unsealed segments, in
// every part of them as often as in any other. Whatever the flip can reach is
// detected; what it cannot reach is served. Payloads of sealed segments are
// flipped many at once, one bit in each block, since nothing else reads them.
func TestSilentCorruption(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(2026, 11))
	var specimens []*specimen
	for seed := range uint64(6) {
		specimens = append(specimens, newSpecimen(t, seed+1, seed%2 == 0))
	}
	var done [regions]int
	var hurtTotal, total int
	want := flips
	if thin() {
		want = flips / 20
	}
	if encoded := slices.IndexFunc(specimens, func(sp *specimen) bool { return sp.encoded > 0 }); encoded < 0 {
		t.Error("no block is encoded")
	}
	for total < want {
		sp := specimens[rng.IntN(len(specimens))]
		damaged := sp.fs.After(vfstest.CutProcess, 0)
		hurt := map[int]bool{}
		var where string
		for _, at := range sp.targets(rng) {
			off := sp.flip(t, damaged, at, rng)
			where = fmt.Sprintf("%s of %s (sealed: %v), last flip at %d", at.region, filepath.Base(sp.path), sp.sealed, off)
			for i, h := range sp.hurt(at) {
				hurt[i] = hurt[i] || h
			}
			done[at.region]++
			total++
		}
		sp.judge(t, where, damaged, hurt)
		for _, h := range hurt {
			if h {
				hurtTotal++
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d bits flipped, %d blocks detected as hurt, none served wrong", total, hurtTotal)
	for r, n := range done {
		t.Logf("%6d in %v", n, region(r))
		if n == 0 {
			t.Errorf("none in %v", region(r))
		}
	}
}

// targets chooses where to flip: one span of a kind chosen at random, or one
// bit in each of many payloads of a sealed segment.
func (sp *specimen) targets(rng *rand.Rand) []span {
	var spans []span
	r := region(rng.IntN(int(regions)))
	for _, s := range sp.spans {
		if s.region == r {
			spans = append(spans, s)
		}
	}
	if len(spans) == 0 {
		return nil // an unsealed segment has no footer
	}
	if r == inPayload && sp.sealed {
		rng.Shuffle(len(spans), func(i, j int) { spans[i], spans[j] = spans[j], spans[i] })
		return spans[:1+rng.IntN(len(spans))]
	}
	return spans[rng.IntN(len(spans)):][:1]
}
