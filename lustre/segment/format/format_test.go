package format

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"cascadekv/internal/block"
)

// goldenBlocks show every entry kind, inline and aligned payloads.
func goldenBlocks() []Block {
	full := block.Name{
		Namespace: "llama/fp8", Key: "key-1", Parent: "key-0", Depth: 258, Prefix: true, Bound: true,
		Seq: 0x1122334455667788, Expires: time.Unix(1900000000, 123456789).UTC(),
	}
	zero := []byte{}
	ramp := make([]byte, 4097)
	for i := range ramp {
		ramp[i] = byte(i * 7)
	}
	item := func(p []byte, names ...block.Name) Block {
		info := block.Info{ID: block.Sum(block.Bits256, p), Size: int64(len(p)), CRC: block.CRC(p)}
		return Block{Info: info, Names: names, As: Plain(info), Bytes: p}
	}
	return []Block{item(ramp, full), item([]byte("inline"), block.Name{Key: "k", Seq: 1}), item(zero)}
}

func TestEntriesRoundTrip(t *testing.T) {
	items := goldenBlocks()
	var table []byte
	var want []Entry
	for i, it := range items {
		table = appendBlock(table, it.Info, Plain(it.Info), int64(i)*4096, 0, 0)
		want = append(want, Entry{
			Kind: KindBlock, Info: it.Info, Stored: it.Info.Size, Off: int64(i) * 4096, StoredCRC: it.Info.CRC,
		})
		for _, n := range it.Names {
			table = appendName(table, it.Info.ID, n)
			want = append(want, Entry{Kind: KindName, Info: block.Info{ID: it.Info.ID}, Name: n})
		}
	}
	unknown, e := begin(nil, 99, 0, 24)
	copy(e[8:], "whatever comes")
	table = append(table, unknown...)
	table = appendDrop(table, block.Name{Namespace: "n", Key: "k", Seq: 5})
	want = append(want, Entry{Kind: KindDrop, Name: block.Name{Namespace: "n", Key: "k", Seq: 5}})
	inferred := block.Name{Namespace: "n", Key: "k", Parent: "p", Depth: 3, Seq: 6, Inferred: true}
	table = appendName(table, items[0].Info.ID, inferred)
	want = append(want, Entry{Kind: KindName, Info: block.Info{ID: items[0].Info.ID}, Name: inferred})
	layout := &block.Layout{Bytes: 81920, KeyBytes: 40960, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "bfloat16"}
	for _, l := range []*block.Layout{layout, {}} {
		table = Record{Name: block.Name{Namespace: "n", Seq: 7}, Layout: l}.append(table)
		want = append(want, Entry{Kind: KindLayout, Name: block.Name{Namespace: "n", Seq: 7}, Layout: l})
	}
	got, err := decodeTable(nil, table, 0, len(want)+1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestTextsAreShared: a million names of one namespace, each with its parent's
// key, do not keep a copy of each text.
func TestTextsAreShared(t *testing.T) {
	var table []byte
	const n = 5
	for i := range n {
		info := block.Info{ID: block.Sum(block.Bits128, []byte{byte(i)}), Size: 4096}
		table = appendBlock(table, info, Plain(info), 4096, 0, 0)
		table = appendName(table, info.ID, block.Name{Namespace: "space", Key: fmt.Sprint("key", i), Parent: fmt.Sprint("key", i-1)})
	}
	got, err := decodeTable(nil, table, 0, 2*n, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b string) bool { return a == b && unsafe.StringData(a) == unsafe.StringData(b) }
	for i := 3; i < len(got); i += 2 {
		is, was := got[i].Name, got[i-2].Name
		if !same(is.Namespace, was.Namespace) || !same(is.Parent, was.Key) || is.Key == was.Key {
			t.Errorf("%+v shares no texts with %+v", is, was)
		}
	}
}

func TestUnknownCodecIsSkipped(t *testing.T) {
	it := goldenBlocks()[0]
	table := appendBlock(nil, it.Info, Plain(it.Info), 4096, 0, 0)
	table[72] = 9
	LE.PutUint64(table[48:], 100)
	got, err := decodeTable(nil, table, 0, 1, 1<<20)
	if err != nil || len(got) != 0 {
		t.Errorf("%d entries, error %v", len(got), err)
	}
}

func TestHeaderRefused(t *testing.T) {
	good := make([]byte, PageSize)
	EncodeHeader(good, FileID{3, 4, 5}, Header{Created: time.Unix(0, 6), Layout: "v1 8x4MiB"})
	if id, h, err := DecodeHeader(good); err != nil || h.Layout != "v1 8x4MiB" || id != (FileID{3, 4, 5}) || h.Created.UnixNano() != 6 {
		t.Fatalf("header %+v, %v", h, err)
	}
	fixed := func(p []byte) []byte {
		LE.PutUint32(p[4092:], block.CRC(p[:4092]))
		return p
	}
	for name, damage := range map[string]func(p []byte) []byte{
		"empty":      func(p []byte) []byte { return nil },
		"magic":      func(p []byte) []byte { p[0] = 'X'; return p },
		"version":    func(p []byte) []byte { p[8] = Version + 1; return fixed(p) },
		"no version": func(p []byte) []byte { p[8] = 0; return fixed(p) },
		"features":   func(p []byte) []byte { p[11] = 0x80; return fixed(p) },
		"big endian": func(p []byte) []byte { copy(p[12:], []byte{1, 2, 3, 4}); return p },
		"page size":  func(p []byte) []byte { p[21] = 0x20; return p },
		"one bit":    func(p []byte) []byte { p[3000] ^= 1; return p },
		"wrong crc":  func(p []byte) []byte { p[4095] ^= 1; return p },
		"short":      func(p []byte) []byte { return p[:4095] },
		"all zeroes": func(p []byte) []byte { clear(p); return p },
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := DecodeHeader(damage(bytes.Clone(good)))
			if !errors.Is(err, ErrBadFormat) {
				t.Errorf("error %v, want %v", err, ErrBadFormat)
			}
		})
	}
}

// fuzzCheck holds for whatever a decoder accepts.
func fuzzCheck(t *testing.T, entries []Entry, err error, limit int64) {
	if err != nil {
		if !errors.Is(err, ErrBadFormat) {
			t.Errorf("error %v does not match ErrBadFormat", err)
		}
		return
	}
	for _, e := range entries {
		if e.Kind == KindBlock && (e.Off < 0 || e.Stored < 0 || e.Off+e.Stored > limit || !e.As().Fits(e.Info)) {
			t.Errorf("payload of %d bytes at %d of %d", e.Stored, e.Off, limit)
		}
		if len(e.Name.Key) > block.MaxKey || len(e.Name.Namespace) > block.MaxKey || len(e.Name.Parent) > block.MaxKey {
			t.Errorf("name of %d bytes", len(e.Name.Key))
		}
	}
}

func FuzzHeader(f *testing.F) {
	p := make([]byte, PageSize)
	EncodeHeader(p, FileID{1, 2, 3}, Header{Created: time.Unix(0, 0), Layout: "x"})
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= PageSize {
			p = p[:PageSize]
			LE.PutUint32(p[4092:], block.CRC(p[:4092])) // let the fuzzer past the checksum
		}
		id, h, err := DecodeHeader(p)
		if err != nil {
			return
		}
		again := make([]byte, PageSize)
		EncodeHeader(again, id, h)
		if id2, h2, err := DecodeHeader(again); err != nil || id2 != id || h2 != h {
			t.Errorf("header %+v came back as %+v, %v", h, h2, err)
		}
	})
}

func seedFrame() []byte {
	b := Builder{Frames: 1, Off: PageSize}
	fr := b.Build(FileID{}, goldenBlocks(), []Record{{Name: block.Name{Key: "d", Seq: 3}, Dropped: true}}, 0)
	var p []byte
	for _, b := range fr.Bufs {
		p = append(p, b...)
	}
	return p
}

// seedFrame1 is a frame of version 1.
func seedFrame1() []byte {
	p := make([]byte, PageSize)
	table := appendName(nil, block.ID{1}, block.Name{Namespace: "ns", Key: "a", Seq: 2})
	copy(p[headSize1:], table)
	EncodeFrameHeader(p, FrameHeader{Version: 1, HeadLen: int64(headSize1 + len(table)), Total: PageSize, Entries: 1})
	return p
}

func FuzzFrame(f *testing.F) {
	f.Add(seedFrame())
	f.Add(seedFrame()[:HeadSize])
	f.Add(seedFrame1())
	f.Fuzz(func(t *testing.T, p []byte) {
		if h, err := DecodeFrameHeader(p); err == nil && int64(len(p)) >= h.HeadLen {
			LE.PutUint32(p[60:], FrameCRC(p[:h.HeadLen])) // let the fuzzer past the checksum
		}
		p = append(p, make([]byte, max(0, PageSize-len(p)))...) // a file has whole pages
		want, _ := DecodeFrameHeader(p)
		h, head, err := ReadFrame(want.FileID, 0, want.Number, want.Total, func(_, n int64) ([]byte, error) {
			if n > int64(len(p)) {
				return nil, Errorf("frame header cut after %d of %d bytes", len(p), n)
			}
			return p[:n], nil
		})
		var entries []Entry
		if err == nil {
			entries, err = decodeTable(nil, head[h.TableAt():], h.TableAt(), h.Entries, h.Total)
		}
		fuzzCheck(t, entries, err, h.Total)
	})
}

func FuzzFooter(f *testing.F) {
	table := appendBlock(nil, goldenBlocks()[0].Info, Plain(goldenBlocks()[0].Info), 8192, 0, 0)
	table = appendName(table, block.ID{1}, block.Name{Namespace: "ns", Key: "a", Parent: "before a", Depth: 7, Seq: 2})
	table = Record{Name: block.Name{Namespace: "ns", Seq: 3}, Layout: &block.Layout{Bytes: 9, KeyBytes: 4, DType: "fp8"}}.append(table)
	for _, version := range []uint16{1, Version} {
		f.Add(encodeFooter(version, FileID{1, 2, 3}, 16384, 1, 3, table))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var off int64 = 16384
		if len(p) >= PageSize {
			trailer := p[len(p)-TrailerSize:]
			LE.PutUint32(trailer[16:], block.CRC(p[:len(p)-TrailerSize]))
			LE.PutUint32(trailer[20:], block.CRC(trailer[:20]))
			if o, size, ok := DecodeTrailer(trailer, off+int64(len(p))); ok && (o < PageSize || o+size != off+int64(len(p))) {
				t.Errorf("trailer leads to %d+%d", o, size)
			}
		}
		foot, err := DecodeFooter(p, FileID{1, 2, 3})
		var entries []Entry
		if err == nil {
			entries, err = decodeTable(nil, foot.Table, 0, foot.Entries, off)
		}
		fuzzCheck(t, entries, err, off)
	})
}

// TestNamesAreThoseOfTheFormat: names are made as docs/format.md has them, and read back.
func TestNamesAreThoseOfTheFormat(t *testing.T) {
	for _, id := range []FileID{{}, {7, 1, 12}, {123, 0xabc, 123456}, {4_000_000_000, math.MaxUint64, math.MaxUint64}} {
		want := fmt.Sprintf("rank%03d-%016x/agg_rank%03d_%06d.bin", id.Rank, id.Incarnation, id.Rank, id.Number)
		if got := id.Path(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if back, ok := ParsePath(want); !ok || back != id {
			t.Errorf("%q is read as %v, %v", want, back, ok)
		}
	}
}
