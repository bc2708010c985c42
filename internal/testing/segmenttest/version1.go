package segmenttest

import (
	"bufio"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

//go:embed testdata/version1.golden
var version1 string

// Version1ID is the segment that Version1 is.
var Version1ID = format.FileID{Rank: 3, Incarnation: 0xabcdef}

// Version1 is a sealed segment of version 1, as the program wrote it that knew no other:
// two frames, with Version1Items and a DROP of "gone" in "llama/fp8" at 9.
func Version1(t testing.TB) []byte {
	t.Helper()
	var p []byte
	for lines := bufio.NewScanner(strings.NewReader(version1)); lines.Scan(); {
		var off int
		var row string
		if _, err := fmt.Sscanf(lines.Text(), "%x %s", &off, &row); err != nil {
			t.Fatal(err)
		}
		p = append(p, make([]byte, off-len(p))...)
		if bytes, err := hex.DecodeString(row); err == nil { // not the end
			p = append(p, bytes...)
		}
	}
	return p
}

// Version1Items are the blocks of Version1 with their names.
func Version1Items() []tiers.Item {
	ramp := make([]byte, 4097)
	for i := range ramp {
		ramp[i] = byte(i * 7)
	}
	item := func(p []byte, names ...block.Name) tiers.Item {
		return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits256, p), Size: int64(len(p)), CRC: block.CRC(p)}, Names: names, Data: p}
	}
	full := block.Name{
		Namespace: "llama/fp8", Key: "key-1", Parent: "key-0", Depth: 258, Prefix: true, Bound: true,
		Seq: 0x1122334455667788, Expires: time.Unix(1900000000, 123456789).UTC(),
	}
	return []tiers.Item{item(ramp, full), item([]byte("inline"), block.Name{Key: "k", Seq: 1}), item([]byte{})}
}
