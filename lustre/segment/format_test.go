package segment

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"cascadekv/internal/block"
)

var update = flag.Bool("update", false, "write golden files anew; docs/format.md must say the same")

// goldenItems show every entry kind, inline and aligned payloads.
func goldenItems() []Item {
	full := block.Name{
		Namespace: "llama/fp8", Key: "key-1", Parent: "key-0", Depth: 258, Prefix: true, Bound: true,
		Seq: 0x1122334455667788, Expires: time.Unix(1900000000, 123456789).UTC(),
	}
	zero := []byte{}
	ramp := make([]byte, 4097)
	for i := range ramp {
		ramp[i] = byte(i * 7)
	}
	item := func(p []byte, names ...block.Name) Item {
		return Item{Info: block.Info{ID: block.Sum(block.Bits256, p), Size: int64(len(p)), CRC: block.CRC(p)}, Names: names, Data: p}
	}
	return []Item{item(ramp, full), item([]byte("inline"), block.Name{Key: "k", Seq: 1}), item(zero)}
}

// goldenSegment writes a sealed segment with two frames and returns its bytes.
func goldenSegment(t *testing.T) []byte {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 0xabcdef))
	items := goldenItems()
	put(t, s, items[0])
	if err := s.Unlink(block.Name{Namespace: "llama/fp8", Key: "gone", Seq: 9}); err != nil {
		t.Fatal(err)
	}
	put(t, s, items[1:]...)
	closeStore(t, s)
	return readFile(t, dir, segmentPath(0xabcdef, 0))
}

// sparse prints the rows of 16 bytes that are not all zero.
func sparse(p []byte) []byte {
	var b bytes.Buffer
	for off := 0; off < len(p); off += 16 {
		if row := p[off:min(off+16, len(p))]; !bytes.Equal(row, zeros[:len(row)]) {
			fmt.Fprintf(&b, "%06x %s\n", off, hex.EncodeToString(row))
		}
	}
	fmt.Fprintf(&b, "%06x end\n", len(p))
	return b.Bytes()
}

func TestGoldenSegment(t *testing.T) {
	got := sparse(goldenSegment(t))
	const path = "testdata/segment.golden"
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := readFile(t, path); !bytes.Equal(got, want) {
		t.Errorf("the bytes of a segment changed; got\n%s", got)
	}
}

// TestFieldOffsets checks a written segment against docs/format.md, field by
// field, without the package's own decoder.
func TestFieldOffsets(t *testing.T) {
	p := goldenSegment(t)
	frame0, frame1 := 4096, 4096+3*4096
	entry0 := frame0 + 64
	name0 := entry0 + 80
	fields := map[string]struct {
		off, size int
		want      uint64
	}{
		"header version":        {8, 2, 1},
		"header mark":           {12, 4, 0x01020304},
		"header rank":           {16, 4, 3},
		"header page size":      {20, 4, 4096},
		"header incarnation":    {24, 8, 0xabcdef},
		"header file id":        {32, 8, 0},
		"header created":        {40, 8, 1800000000_000000005},
		"frame 0 header length": {frame0 + 8, 4, 64 + 80 + 72 + 24},
		"frame 0 entries":       {frame0 + 12, 4, 2},
		"frame 0 length":        {frame0 + 16, 8, 3 * 4096},
		"frame 0 incarnation":   {frame0 + 24, 8, 0xabcdef},
		"frame 0 number":        {frame0 + 32, 8, 0},
		"frame 0 synced":        {frame0 + 48, 8, 0},
		"frame 1 number":        {frame1 + 32, 8, 1},
		"frame 1 synced":        {frame1 + 48, 8, 1},
		"frame 1 length":        {frame1 + 16, 8, 4096},
		"frame 1 entries":       {frame1 + 12, 4, 4},
		"BLOCK kind":            {entry0, 2, 1},
		"BLOCK flags":           {entry0 + 2, 2, 0},
		"BLOCK length":          {entry0 + 4, 4, 80},
		"BLOCK size":            {entry0 + 40, 8, 4097},
		"BLOCK stored size":     {entry0 + 48, 8, 4097},
		"BLOCK payload offset":  {entry0 + 56, 8, 4096},
		"BLOCK codec":           {entry0 + 72, 1, 0},
		"NAME kind":             {name0, 2, 2},
		"NAME flags":            {name0 + 2, 2, 7},
		"NAME length":           {name0 + 4, 4, 72 + 24},
		"NAME seq":              {name0 + 40, 8, 0x1122334455667788},
		"NAME expires":          {name0 + 48, 8, 1900000000},
		"NAME nanoseconds":      {name0 + 56, 4, 123456789},
		"NAME depth":            {name0 + 60, 4, 258},
		"NAME namespace length": {name0 + 64, 2, 9},
		"NAME key length":       {name0 + 66, 2, 5},
		"NAME parent length":    {name0 + 68, 2, 5},
		"inline BLOCK flags":    {frame1 + 64 + 2, 2, 1},
		"inline BLOCK length":   {frame1 + 64 + 4, 4, 88},
		"inline BLOCK offset":   {frame1 + 64 + 56, 8, 64 + 80},
		"footer frames":         {frame1 + 4096 + 8, 4, 2},
		"footer entries":        {frame1 + 4096 + 12, 4, 6},
		"footer payload offset": {frame1 + 4096 + 64 + 56, 8, uint64(frame0 + 4096)},
		"trailer footer offset": {len(p) - 32, 8, uint64(frame1 + 4096)},
		"trailer footer length": {len(p) - 24, 8, 4096},
	}
	for name, f := range fields {
		t.Run(name, func(t *testing.T) {
			var got uint64
			for i := range f.size {
				got |= uint64(p[f.off+i]) << (8 * i)
			}
			if got != f.want {
				t.Errorf("%#x, want %#x", got, f.want)
			}
		})
	}
	if string(p[name0+72:name0+72+19]) != "llama/fp8key-1key-0" {
		t.Errorf("NAME text %q", p[name0+72:name0+72+19])
	}
	if string(p[frame1+64+80:frame1+64+86]) != "inline" {
		t.Errorf("inline payload %q", p[frame1+64+80:frame1+64+86])
	}
}

func TestEntriesRoundTrip(t *testing.T) {
	items := goldenItems()
	var table []byte
	var want []entry
	for i, it := range items {
		table = appendBlock(table, it.Info, plain(it.Info), int64(i)*4096, nil)
		want = append(want, entry{
			kind: kindBlock, info: it.Info, stored: it.Info.Size, off: int64(i) * 4096, storedCRC: it.Info.CRC,
		})
		for _, n := range it.Names {
			table = appendName(table, it.Info.ID, n)
			want = append(want, entry{kind: kindName, info: block.Info{ID: it.Info.ID}, name: n})
		}
	}
	unknown, e := begin(nil, 99, 0, 24)
	copy(e[8:], "whatever comes")
	table = append(table, unknown...)
	table = appendDrop(table, block.Name{Namespace: "n", Key: "k", Seq: 5})
	want = append(want, entry{kind: kindDrop, name: block.Name{Namespace: "n", Key: "k", Seq: 5}})
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
		table = appendBlock(table, info, plain(info), 4096, nil)
		table = appendName(table, info.ID, block.Name{Namespace: "space", Key: fmt.Sprint("key", i), Parent: fmt.Sprint("key", i-1)})
	}
	got, err := decodeTable(nil, table, 0, 2*n, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b string) bool { return a == b && unsafe.StringData(a) == unsafe.StringData(b) }
	for i := 3; i < len(got); i += 2 {
		is, was := got[i].name, got[i-2].name
		if !same(is.Namespace, was.Namespace) || !same(is.Parent, was.Key) || is.Key == was.Key {
			t.Errorf("%+v shares no texts with %+v", is, was)
		}
	}
}

func TestUnknownCodecIsSkipped(t *testing.T) {
	it := goldenItems()[0]
	table := appendBlock(nil, it.Info, plain(it.Info), 4096, nil)
	table[72] = 9
	le.PutUint64(table[48:], 100)
	got, err := decodeTable(nil, table, 0, 1, 1<<20)
	if err != nil || len(got) != 0 {
		t.Errorf("%d entries, error %v", len(got), err)
	}
}

func TestHeaderRefused(t *testing.T) {
	good := make([]byte, pageSize)
	encodeHeader(good, header{fileID: fileID{3, 4, 5}, created: 6, layout: "v1 8x4MiB"})
	if h, err := decodeHeader(good); err != nil || h.layout != "v1 8x4MiB" || h.fileID != (fileID{3, 4, 5}) || h.created != 6 {
		t.Fatalf("header %+v, %v", h, err)
	}
	for name, damage := range map[string]func(p []byte) []byte{
		"empty":      func(p []byte) []byte { return nil },
		"magic":      func(p []byte) []byte { p[0] = 'X'; return p },
		"version":    func(p []byte) []byte { p[8] = 2; return p },
		"big endian": func(p []byte) []byte { copy(p[12:], []byte{1, 2, 3, 4}); return p },
		"page size":  func(p []byte) []byte { p[21] = 0x20; return p },
		"one bit":    func(p []byte) []byte { p[3000] ^= 1; return p },
		"wrong crc":  func(p []byte) []byte { p[4095] ^= 1; return p },
		"short":      func(p []byte) []byte { return p[:4095] },
		"all zeroes": func(p []byte) []byte { clear(p); return p },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeHeader(damage(bytes.Clone(good)))
			wantErr(t, "decodeHeader", err, ErrBadFormat)
		})
	}
}

// fuzzCheck holds for whatever a decoder accepts.
func fuzzCheck(t *testing.T, entries []entry, err error, limit int64) {
	if err != nil {
		if !errors.Is(err, ErrBadFormat) {
			t.Errorf("error %v does not match ErrBadFormat", err)
		}
		return
	}
	for _, e := range entries {
		if e.kind == kindBlock && (e.off < 0 || e.stored < 0 || e.off+e.stored > limit || !e.as().fits(e.info)) {
			t.Errorf("payload of %d bytes at %d of %d", e.stored, e.off, limit)
		}
		if len(e.name.Key) > block.MaxKey || len(e.name.Namespace) > block.MaxKey || len(e.name.Parent) > block.MaxKey {
			t.Errorf("name of %d bytes", len(e.name.Key))
		}
	}
}

func FuzzHeader(f *testing.F) {
	p := make([]byte, pageSize)
	encodeHeader(p, header{fileID: fileID{1, 2, 3}, layout: "x"})
	f.Add(p)
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= pageSize {
			p = p[:pageSize]
			le.PutUint32(p[4092:], block.CRC(p[:4092])) // let the fuzzer past the checksum
		}
		h, err := decodeHeader(p)
		if err != nil {
			return
		}
		again := make([]byte, pageSize)
		encodeHeader(again, h)
		if h2, err := decodeHeader(again); err != nil || h2 != h {
			t.Errorf("header %+v came back as %+v, %v", h, h2, err)
		}
	})
}

func seedFrame() []byte {
	f := newFile(true)
	f.off = pageSize
	fr := f.build(parcels(goldenItems()), []record{{name: block.Name{Key: "d", Seq: 3}, dropped: true}}, false)
	var p []byte
	for _, b := range fr.bufs {
		p = append(p, b...)
	}
	return p
}

func FuzzFrame(f *testing.F) {
	f.Add(seedFrame())
	f.Add(seedFrame()[:frameHeaderSize])
	f.Fuzz(func(t *testing.T, p []byte) {
		if h, err := decodeFrameHeader(p); err == nil && int64(len(p)) >= h.headLen {
			le.PutUint32(p[60:], frameCRC(p[:h.headLen])) // let the fuzzer past the checksum
		}
		h, entries, err := decodeFrame(p)
		fuzzCheck(t, entries, err, h.total)
	})
}

func FuzzFooter(f *testing.F) {
	table := appendBlock(nil, goldenItems()[0].Info, plain(goldenItems()[0].Info), 8192, nil)
	table = appendName(table, block.ID{1}, testName("a", 2))
	f.Add(encodeFooter(fileID{1, 2, 3}, 16384, 1, 2, table))
	f.Fuzz(func(t *testing.T, p []byte) {
		var off int64 = 16384
		if len(p) >= pageSize {
			trailer := p[len(p)-trailerSize:]
			le.PutUint32(trailer[16:], block.CRC(p[:len(p)-trailerSize]))
			le.PutUint32(trailer[20:], block.CRC(trailer[:20]))
			if o, size, ok := decodeTrailer(trailer, off+int64(len(p))); ok && (o < pageSize || o+size != off+int64(len(p))) {
				t.Errorf("trailer leads to %d+%d", o, size)
			}
		}
		entries, err := decodeFooter(nil, p, fileID{1, 2, 3}, off)
		fuzzCheck(t, entries, err, off)
	})
}
