package segment

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

var update = flag.Bool("update", false, "write golden files anew; docs/format.md must say the same")

// goldenItems show every entry kind, inline and aligned payloads.
func goldenItems() []tiers.Item {
	full := block.Name{
		Namespace: "llama/fp8", Key: "key-1", Parent: "key-0", Depth: 258, Prefix: true, Bound: true,
		Seq: 0x1122334455667788, Expires: time.Unix(1900000000, 123456789).UTC(),
	}
	zero := []byte{}
	ramp := make([]byte, 4097)
	for i := range ramp {
		ramp[i] = byte(i * 7)
	}
	item := func(p []byte, names ...block.Name) tiers.Item {
		return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits256, p), Size: int64(len(p)), CRC: block.CRC(p)}, Names: names, Data: p}
	}
	return []tiers.Item{item(ramp, full), item([]byte("inline"), block.Name{Key: "k", Seq: 1}), item(zero)}
}

// goldenSegment writes a sealed segment with two frames and returns its bytes.
func goldenSegment(t *testing.T) []byte {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 0xabcdef))
	items := goldenItems()
	put(t, s, items[0])
	if err := s.Unlink(block.ID{}, block.Name{Namespace: "llama/fp8", Key: "gone", Seq: 9}); err != nil {
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
		if row := p[off:min(off+16, len(p))]; !bytes.Equal(row, format.Zeros[:len(row)]) {
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
