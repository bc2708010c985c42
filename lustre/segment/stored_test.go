package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/payload"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// noiseItem makes a block that nothing can compress.
func noiseItem(seed uint64, size int, names ...block.Name) tiers.Item {
	return testItem(4*seed+3, size, names...)
}

func encoding(dir string, incarnation uint64) Options {
	o := testOptions(dir, incarnation)
	o.Compress = true
	return o
}

// storedAs tells how a block lies in its file.
func storedAs(t *testing.T, s *opened, it tiers.Item) format.Payload {
	t.Helper()
	loc := s.Store.blocks[it.Info.ID]
	if loc == nil {
		t.Fatalf("block %v is not there", it.Info.ID)
	}
	return loc.as
}

// TestEncode: tensors shrink and noise is stored as it is; ids and checksums are
// those of the bytes that were put; stores with the option and without serve
// them, in every way to read.
func TestEncode(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, encoding(dir, 1))
	tensor, noise, small := tensorItem(1, 300_001), noiseItem(2, 200_000), tensorItem(3, 400)
	put(t, s, tensor, noise, small)
	if as := storedAs(t, s, tensor); as.Codec != codec.Shuffle2 || as.Size > 230_000 {
		t.Errorf("the tensor: %+v", as)
	}
	for _, it := range []tiers.Item{noise, small} {
		if as := storedAs(t, s, it); as != format.Plain(it.Info) {
			t.Errorf("%d bytes: %+v", it.Info.Size, as)
		}
	}
	items := []tiers.Item{tensor, noise, small}
	wantEncoded(t, s, tensor, noise, small)
	place := placeOf(t, s, tensor)
	closeStore(t, s)

	v := segmenttest.Inspect(t, readFile(t, dir, segmentPath(1, 0)), true)
	if len(v.Damage) != 0 || len(segmenttest.Usable(v)) != 3 {
		t.Errorf("inspected: %+v", v)
	}
	for i, o := range []Options{encoding(dir, 2), testOptions(dir, 3)} {
		again := openStore(t, o)
		if again.Usage().Payload != s.Usage().Payload || again.Encoded().Stored != s.Encoded().Stored {
			t.Errorf("store %d: %+v, was %+v", i, again.Usage(), s.Usage())
		}
		for _, it := range items {
			if again.blocks[it.Info.ID] != it.Info {
				t.Errorf("store %d: found %+v, want %+v", i, again.blocks[it.Info.ID], it.Info)
			}
		}
		wantBytes(t, again, items...)
		wantBatch(t, again, items, nil)
		wantPlace(t, again, place, tensor)
		if n := again.Encoded().Codecs[codec.Shuffle2].Decoded; n != uint64(2+len(byPlaces)) {
			t.Errorf("store %d decoded %d times", i, n)
		}
	}
}

// wantEncoded compares counters and space with blocks of which only the first
// is encoded.
func wantEncoded(t *testing.T, s *opened, tensor tiers.Item, others ...tiers.Item) {
	t.Helper()
	as := storedAs(t, s, tensor)
	var in, blocks uint64
	for _, it := range others {
		in, blocks = in+uint64(it.Info.Size), blocks+1
	}
	all := s.Encoded().Codecs
	if e := all[codec.Shuffle2]; e.Name != "shuffle2+zstd" || e.Blocks != 1 || e.BytesIn != uint64(tensor.Info.Size) || e.BytesOut != uint64(as.Size) {
		t.Errorf("%+v, stored %+v", e, as)
	}
	if e := all[codec.None]; e.Blocks != blocks || e.BytesIn != in || e.BytesOut != in {
		t.Errorf("%+v, want %d blocks of %d bytes", e, blocks, in)
	}
	u, stored := s.Usage(), s.Encoded().Stored
	if u.Payload != tensor.Info.Size+int64(in) || stored != as.Size+int64(in) {
		t.Errorf("%+v", u)
	}
	if u.Used > format.PageSize+format.Align(as.Size)+format.Align(int64(in))+3*format.PageSize {
		t.Errorf("%d bytes of files for %d", u.Used, stored)
	}
}

// TestEncodeOff: without the option nothing is encoded.
func TestEncodeOff(t *testing.T) {
	s := openStore(t, testOptions(t.TempDir(), 1))
	it := tensorItem(1, 100_000)
	put(t, s, it)
	if as := storedAs(t, s, it); as != format.Plain(it.Info) {
		t.Errorf("%+v", as)
	}
	wantBytes(t, s, it)
}

// TestMergeKeepsEncodings: payloads move as they are, by a store that encodes
// and by one that does not.
func TestMergeKeepsEncodings(t *testing.T) {
	for name, compress := range map[string]bool{"encodes": true, "does not": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			o := small(dir, 1)
			s := openStore(t, o)
			kept := evictSome(t, s, populate(t, s, 60))
			closeStore(t, s)
			o = small(dir, 2)
			o.Compress = compress
			s = openStore(t, o)
			before := map[block.ID]format.Payload{}
			for id, loc := range s.Store.blocks {
				before[id] = loc.as
				if _, ok := s.blocks[id]; ok && !containsID(kept, id) {
					if err := s.Evict(id); err != nil {
						t.Fatal(err)
					}
				}
			}
			m, encoded := merged(t, s, 0), 0
			for _, it := range kept {
				as := storedAs(t, s, it)
				if as != before[it.Info.ID] {
					t.Errorf("%+v became %+v", before[it.Info.ID], as)
				}
				if as.Codec != codec.None {
					encoded++
				}
			}
			if m.Blocks == 0 || encoded < len(kept)/3 {
				t.Errorf("%+v, %d of %d blocks are encoded", m, encoded, len(kept))
			}
			if all := s.Encoded().Codecs; all[codec.None].Blocks+all[codec.Shuffle2].Blocks+all[codec.Shuffle2].Decoded != 0 {
				t.Errorf("a merge encoded or decoded: %+v", all)
			}
			wantBytes(t, s, kept...)
		})
	}
}

func containsID(items []tiers.Item, id block.ID) bool {
	for _, it := range items {
		if it.Info.ID == id {
			return true
		}
	}
	return false
}

// TestDamagedEncodings: a payload whose own checksum is right and that does not
// decode to the block is a miss, in every way to read, and no byte outside of
// the reader's memory is written.
func TestDamagedEncodings(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, number := range codec.Numbers[1:] {
		for round := range 24 {
			it := tensorItem(uint64(round), 20_000+rng.IntN(300_000))
			payload := make([]byte, it.Info.Size)
			n, err := newCoder(t).EncodeAs(number, codec.Huffman, payload, it.Data)
			if err != nil {
				t.Fatal(err)
			}
			payload = payload[:n]
			switch round % 4 {
			case 0: // the table of lengths
				payload[rng.IntN(32)] ^= 1 << rng.IntN(8)
			case 1:
				payload = payload[:1+rng.IntN(n-1)]
			case 2:
				for range 1 + rng.IntN(20) {
					payload[rng.IntN(n)] = byte(rng.Uint32())
				}
			case 3: // of another block
				other := tensorItem(1000+uint64(round), int(it.Info.Size))
				if n, err = newCoder(t).EncodeAs(number, codec.Huffman, payload[:cap(payload)], other.Data); err != nil {
					t.Fatal(err)
				}
				payload = payload[:n]
			}
			wantRefused(t, it, payload, number)
		}
	}
}

func newCoder(t testing.TB) *codec.Coder {
	t.Helper()
	c, err := codec.New(codec.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantRefused puts a payload under the name of a block and reads it.
func wantRefused(t *testing.T, it tiers.Item, payload []byte, number codec.Number) {
	t.Helper()
	o := crashOptions(vfstest.NewCrash(), 1)
	s := openStore(t, o)
	f := s.use()
	p := format.Block{Info: it.Info, Names: it.Names, As: format.Payload{Size: int64(len(payload)), CRC: block.CRC(payload), Codec: number}, Bytes: payload}
	fr, err := s.append(f, []format.Block{p}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.unuse(f)
	at := placed(p.As, segmentPath(1, 0), fr.offs[0])
	room := bytes.Repeat([]byte{0xa5}, len(it.Data)+512)
	dst := room[256:][:len(it.Data):len(it.Data)]
	reads := map[string]func() error{
		"by place": func() error { return s.ReadSegment(t.Context(), at, it.Info, dst) },
		"alone": func() error {
			ref := acquireAt(t, s, f, p, fr.offs[0])
			defer ref.Release()
			return ref.ReadInto(t.Context(), dst)
		},
		"together": func() error {
			ref := acquireAt(t, s, f, p, fr.offs[0])
			defer ref.Release()
			return s.ReadBatch(t.Context(), []tiers.Read{{Pin: ref, Dst: dst}})[0]
		},
	}
	for how, read := range reads {
		if err := read(); !errors.Is(err, tiers.ErrCorrupt) && !(err == nil && bytes.Equal(dst, it.Data)) {
			t.Errorf("%v, %d bytes for %d, %s: %v", number, len(payload), len(it.Data), how, err)
		}
	}
	for i, b := range room {
		if b != 0xa5 && (i < 256 || i >= 256+len(it.Data)) {
			t.Fatalf("%v: a byte at %d is written, of memory from 256 to %d", number, i, 256+len(it.Data))
		}
	}
	if v := segmenttest.Inspect(t, fileOf(t, o.FS, segmentPath(1, 0)), true); len(v.Damage) == 0 && !bytes.Equal(dst, it.Data) {
		t.Errorf("%v: Inspect finds nothing", number)
	}
}

// acquireAt indexes a block as read from elsewhere, and acquires it.
func acquireAt(t *testing.T, s *opened, f *file, p format.Block, off int64) *Ref {
	t.Helper()
	s.mu.Lock()
	s.indexLocked(f, p.Info, p.As, off)
	s.mu.Unlock()
	ref, err := s.Pin(p.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	return ref.(*Ref)
}

func fileOf(t *testing.T, fs vfs.FS, path string) []byte {
	t.Helper()
	h, err := fs.Open("/campaign/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	n, err := h.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, n)
	if _, err := h.Pread(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// FuzzUnpack: whatever is stored, what comes out is the block or an error, and
// nothing is written outside of its memory.
func FuzzUnpack(f *testing.F) {
	c := newCoder(f)
	s := &Store{coder: c, access: &access{}}
	it := tensorItem(1, 20_000)
	for _, n := range codec.Numbers[1:] {
		p := make([]byte, len(it.Data))
		size, err := c.EncodeAs(n, codec.Huffman, p, it.Data)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p[:size], uint8(n), uint16(0))
		f.Add(p[:size-1], uint8(n), uint16(100))
	}
	f.Fuzz(func(t *testing.T, p []byte, number uint8, gap uint16) {
		as := format.Payload{Size: int64(len(p)), CRC: block.CRC(p), Codec: codec.Number(number)}
		if !as.Fits(it.Info) {
			return
		}
		room := make([]byte, len(it.Data)+512)
		dst := room[256:][:len(it.Data)]
		at := len(dst) - len(p) - min(int(gap), len(dst)-len(p))
		copy(dst[at:], p)
		why, err := payload.Decode(s.coder, it.Info, as, dst, at)
		if why == "" && (err != nil || !bytes.Equal(dst, it.Data)) {
			t.Errorf("unpacked to other bytes, error %v", err)
		}
		if !segfile.IsZero(room[:256]) || !segfile.IsZero(room[256+len(dst):]) {
			t.Error("wrote outside of its memory")
		}
	})
}

// TestPayloadStart: payloads are read into the memory of their blocks, past the page
// cache to an address that the kernel takes wherever there is room for that.
func TestPayloadStart(t *testing.T) {
	memory := make([]byte, 64<<10)
	rng := rand.New(rand.NewPCG(5, 5))
	for _, direct := range []bool{false, true} {
		s := &Store{access: &access{Access: Access{Direct: direct}}}
		for range 2000 {
			from := rng.IntN(9000)
			dst := memory[from:][:1+rng.IntN(50_000)]
			as := format.Payload{Size: 1 + rng.Int64N(int64(len(dst)))}
			at := s.access.payloadStart(as, dst)
			end := len(dst) - int(as.Size)
			over := int(uintptr(unsafe.Pointer(&dst[at])) % format.PageSize)
			if at < 0 || at > end || !direct && at != end || at != end && over != 0 || direct && over != 0 && over <= at {
				t.Fatalf("direct %v: %d of %d bytes land at %d, %d behind a page's start", direct, as.Size, len(dst), at, over)
			}
		}
		if at := s.access.payloadStart(format.Payload{}, nil); at != 0 {
			t.Errorf("an empty block lands at %d", at)
		}
	}
}

// TestUnknownCodec: a block with a codec of a newer program is a miss by the
// index and by its place, and Inspect does not call it damaged.
func TestUnknownCodec(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, encoding(dir, 1))
	it, other := tensorItem(1, 50_000, testName("a", 1)), noiseItem(2, 50_000)
	put(t, s, it, other)
	place := placeOf(t, s, it)
	p := readFile(t, dir, segmentPath(1, 0)) // before there is a footer
	entry := bytes.Index(p, it.Info.ID[:]) - 8
	p[entry+72], place.Codec = 99, 99
	segmenttest.FixFrame(p, format.PageSize)
	closeStore(t, s)
	writeFile(t, p, dir, segmentPath(1, 0))
	again := openStore(t, testOptions(dir, 2))
	if _, err := again.Pin(it.Info.ID); !errors.Is(err, tiers.ErrNotFound) {
		t.Errorf("Acquire: %v", err)
	}
	wantNoPlace(t, "by its place", again, place, it, tiers.ErrCorrupt)
	wantBytes(t, again, other)
	v := segmenttest.Inspect(t, p, true)
	if len(v.Damage) != 0 || len(v.Entries) != 3 || v.Entries[0].Known() || !v.Entries[2].Known() {
		t.Errorf("%+v", v)
	}
	copied := segmenttest.Inspect(t, segmenttest.Redraft(t, p, v, segmenttest.ID), true)
	if len(copied.Damage) != 0 || copied.Entries[0].Codec != 99 || copied.Entries[0].Stored != v.Entries[0].Stored {
		t.Errorf("a repair's copy: %+v", copied)
	}
}

// TestBusyEncodings: what is left when a deadline passes touches the caller's
// memory until it says that it does not, and no longer; the race detector
// watches.
func TestBusyEncodings(t *testing.T) {
	fs := vfstest.NewFault(vfs.OS{})
	o := encoding(t.TempDir(), 1)
	o.FS = fs
	s := openStore(t, o)
	first := tensorItem(1, 100_000)
	put(t, s, first)

	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpWrite, Count: 1, Block: server})
	late := tensorItem(2, 100_000)
	scribble(t, server, late.Data, func(ctx context.Context) error { return s.Put(ctx, late) })
	wantBytes(t, s, first)

	ref, err := s.Pin(first.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Release()
	reads := map[string]func(ctx context.Context, dst []byte) error{
		"alone": ref.ReadInto,
		"together": func(ctx context.Context, dst []byte) error {
			return s.ReadBatch(ctx, []tiers.Read{{Pin: ref, Dst: dst}})[0]
		},
		"by place": func(ctx context.Context, dst []byte) error {
			return s.ReadSegment(ctx, placeOf(t, s, first), first.Info, dst)
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			server, dst := make(chan struct{}), make([]byte, first.Info.Size)
			fs.Add(vfstest.Rule{Op: vfs.OpRead, Count: 1, Block: server})
			scribble(t, server, dst, func(ctx context.Context) error { return read(ctx, dst) })
			if err := read(t.Context(), dst); err != nil || !bytes.Equal(dst, first.Data) {
				t.Errorf("once more: %v", err)
			}
		})
	}
}

// scribble has call give up, lets what hangs go on, and writes to the memory as
// soon as that is allowed.
func scribble(t *testing.T, server chan struct{}, memory []byte, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- call(ctx) }()
	cancel()
	err := <-ended
	close(server)
	busy, runs := errors.AsType[*pool.Busy](err)
	switch {
	case runs:
		<-busy.Done()
	case !errors.Is(err, tiers.ErrUnavailable):
		t.Errorf("error %v", err)
	}
	for i := range memory {
		memory[i] = byte(i)
	}
}

// TestGoldenEncoding takes an encoded record apart by hand, as docs/format.md §1.5
// and §4 describe it: plane 0 is noise and stored as it is, plane 1 is one byte
// again and again and so a frame that zstd calls RLE.
func TestGoldenEncoding(t *testing.T) {
	it := testItem(0, 16384, testName("k", 1))
	dir := t.TempDir()
	s := openStore(t, encoding(dir, 0xabcdef))
	put(t, s, it)
	closeStore(t, s)
	p := readFile(t, dir, segmentPath(0xabcdef, 0))
	const entry = 4096 + 128
	e := p[entry:][:80]
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 16, 0, 0, 0x03, 0x80, 0, 0x3f} // 4096 times 0x3f
	var want []byte
	for _, length := range []int{4096, len(frame), 4096, len(frame)} {
		want = format.LE.AppendUint32(want, uint32(length))
	}
	for half := range 2 {
		for i := range 4096 {
			want = append(want, it.Data[8192*half+2*i])
		}
		want = append(want, frame...)
	}
	for name, f := range map[string]struct{ got, want uint64 }{
		"size":            {format.LE.Uint64(e[40:]), 16384},
		"stored size":     {format.LE.Uint64(e[48:]), uint64(len(want))},
		"offset":          {format.LE.Uint64(e[56:]), 4096},
		"CRC":             {uint64(format.LE.Uint32(e[64:])), uint64(block.CRC(it.Data))},
		"CRC as stored":   {uint64(format.LE.Uint32(e[68:])), uint64(block.CRC(want))},
		"codec":           {uint64(e[72]), 2},
		"frame length":    {format.LE.Uint64(p[4096+16:]), uint64(4096 + format.Align(int64(len(want))))},
		"footer, stored":  {format.LE.Uint64(p[len(p)-4096+128+48:]), uint64(len(want))},
		"footer, payload": {format.LE.Uint64(p[len(p)-4096+128+56:]), 8192},
		"footer, codec":   {uint64(p[len(p)-4096+128+72]), 2},
	} {
		if f.got != f.want {
			t.Errorf("%s: %#x, want %#x", name, f.got, f.want)
		}
	}
	if !bytes.Equal(e[8:40], it.Info.ID[:]) {
		t.Error("the id is not that of the uncompressed bytes")
	}
	if got := p[8192:][:len(want)]; !bytes.Equal(got, want) || !segfile.IsZero(p[8192+len(want):len(p)-4096]) {
		t.Errorf("payload\n%x\nwant\n%x", got, want)
	}
}

// TestTransferEncodings: a stream of encoded blocks arrives as it was, and one
// that decodes to another block is refused when ids are asked for.
func TestTransferEncodings(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, encoding(dir, 1))
	var items []tiers.Item
	for i, size := range []int{200_000, 4096, 300, 9000, 70_000} {
		items = append(items, tensorItem(uint64(i), size, testName(fmt.Sprint(i), uint64(i+1))))
	}
	zeros := tiers.Item{Data: make([]byte, 20_000)} // its encoding is so short that it lies inline
	zeros.Info = block.Info{ID: block.Sum(block.Bits128, zeros.Data), Size: 20_000, CRC: block.CRC(zeros.Data)}
	put(t, s, items...)
	put(t, s, zeros)
	if as := storedAs(t, s, zeros); as.Codec == codec.None || !as.Inline() {
		t.Errorf("zeros: %+v", as)
	}
	closeStore(t, s)
	file := readFile(t, dir, segmentPath(1, 0))
	got, a, err := segmenttest.Transfer(file, int64(len(file)), segmenttest.ID)
	if err != nil || a.Blocks != len(items)+1 || !bytes.Equal(inspectable(got), inspectable(file)) {
		t.Fatalf("%d blocks, error %v, the same: %v", a.Blocks, err, bytes.Equal(got, file))
	}
	back := recoverFrom(t, got)
	wantBytes(t, back, append(items, zeros)...)
	for i := range items {
		liar := items[i]
		liar.Info.ID[3] ^= 1
		dir := t.TempDir()
		s := openStore(t, encoding(dir, 1))
		put(t, s, liar)
		closeStore(t, s)
		lie := readFile(t, dir, segmentPath(1, 0))
		if _, _, err := segmenttest.Transfer(lie, int64(len(lie)), segmenttest.ID); !errors.Is(err, tiers.ErrCorrupt) {
			t.Errorf("block %d under a wrong id: %v", i, err)
		}
	}
}

// inspectable is a file less what a transfer changes: times that frames were
// durable.
func inspectable(file []byte) []byte {
	p := bytes.Clone(file)
	for off := format.PageSize; off+format.PageSize <= len(p); off += format.PageSize {
		if string(p[off:off+4]) == format.FrameMagic {
			format.LE.PutUint64(p[off+48:], 0)
			format.LE.PutUint32(p[off+60:], 0)
		}
	}
	return p
}
