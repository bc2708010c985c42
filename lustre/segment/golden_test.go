package segment

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/segment/format"
)

var update = flag.Bool("update", false, "write golden files anew; docs/format.md must say the same")

// goldenLayout is a LAYOUT of a namespace of those of segmenttest.Version1Items.
var goldenLayout = block.Layout{Bytes: 4097, KeyBytes: 17, Tokens: 256, Layers: 2, Heads: 8, HeadDim: 64, DType: "fp8"}

// goldenSegment writes a sealed segment with two frames, which have every kind of entry,
// inline and aligned payloads, and returns its bytes.
func goldenSegment(t *testing.T) []byte {
	dir := t.TempDir()
	s := openStore(t, testOptions(dir, 0xabcdef))
	items := segmenttest.Version1Items()
	put(t, s, items[0])
	if err := s.Unlink(block.ID{}, block.Name{Namespace: "llama/fp8", Key: "gone", Seq: 9}); err != nil {
		t.Fatal(err)
	}
	if err := s.SetLayout("llama/fp8", 10, goldenLayout); err != nil {
		t.Fatal(err)
	}
	items[1].Names[0].Parent, items[1].Names[0].Depth, items[1].Names[0].Inferred = "j", 1, true
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
	entry0 := frame0 + 128
	name0 := entry0 + 80
	layout := frame1 + 128 + 88 + 80 + 80 + 40 // behind inline BLOCK, NAME, BLOCK, DROP
	fields := map[string]struct {
		off, size int
		want      uint64
	}{
		"header version":        {8, 2, 2},
		"header mark":           {12, 4, 0x01020304},
		"header rank":           {16, 4, 3},
		"header page size":      {20, 4, 4096},
		"header incarnation":    {24, 8, 0xabcdef},
		"header file id":        {32, 8, 0},
		"header created":        {40, 8, 1800000000_000000005},
		"frame 0 header length": {frame0 + 8, 4, 128 + 80 + 72 + 24},
		"frame 0 entries":       {frame0 + 12, 4, 2},
		"frame 0 length":        {frame0 + 16, 8, 3 * 4096},
		"frame 0 incarnation":   {frame0 + 24, 8, 0xabcdef},
		"frame 0 number":        {frame0 + 32, 8, 0},
		"frame 0 synced":        {frame0 + 48, 8, 0},
		"frame 1 number":        {frame1 + 32, 8, 1},
		"frame 1 synced":        {frame1 + 48, 8, 1},
		"frame 1 length":        {frame1 + 16, 8, 4096},
		"frame 1 entries":       {frame1 + 12, 4, 5},
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
		"inline BLOCK flags":    {frame1 + 128 + 2, 2, 1},
		"inline BLOCK length":   {frame1 + 128 + 4, 4, 88},
		"inline BLOCK offset":   {frame1 + 128 + 56, 8, 128 + 80},
		"footer frames":         {frame1 + 4096 + 8, 4, 2},
		"footer entries":        {frame1 + 4096 + 12, 4, 7},
		"inferred NAME flags":   {frame1 + 128 + 88 + 2, 2, 8},
		"LAYOUT kind":           {layout, 2, 4},
		"LAYOUT length":         {layout + 4, 4, 56 + 16},
		"LAYOUT seq":            {layout + 8, 8, 10},
		"LAYOUT bytes":          {layout + 16, 8, 4097},
		"LAYOUT key bytes":      {layout + 24, 8, 17},
		"LAYOUT tokens":         {layout + 32, 4, 256},
		"LAYOUT layers":         {layout + 36, 4, 2},
		"LAYOUT heads":          {layout + 40, 4, 8},
		"LAYOUT head elements":  {layout + 44, 4, 64},
		"LAYOUT namespace":      {layout + 48, 2, 9},
		"LAYOUT dtype":          {layout + 50, 2, 3},
		"footer payload offset": {frame1 + 4096 + 128 + 56, 8, uint64(frame0 + 4096)},
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
	if string(p[layout+56:layout+56+12]) != "llama/fp8fp8" {
		t.Errorf("LAYOUT text %q", p[layout+56:layout+56+12])
	}
	if string(p[frame1+128+80:frame1+128+86]) != "inline" {
		t.Errorf("inline payload %q", p[frame1+128+80:frame1+128+86])
	}
}
