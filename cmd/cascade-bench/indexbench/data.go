package indexbench

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"os"
	"runtime"
	"strconv"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
)

// What the index is filled with: chains of prompts of which eight at a time
// begin alike, in segments of 1 GiB with blocks of 2 MiB.
const (
	namespace     = "Llama-3.1-70B-0123456789abcdef0123456789abcdef"
	chainBlocks   = 1024 // blocks
	sharedBlocks  = 128  // blocks at the head of a chain that others begin with too
	groupChains   = 8    // chains that begin alike
	segmentBlocks = 512  // blocks
	BlockBytes    = 2 << 20
)

// numberOf is the number of a block of a chain: a shared one has that of the
// first chain of its group.
func numberOf(chain, i uint64) uint64 {
	if i < sharedBlocks {
		chain -= chain % groupChains
	}
	return chain*chainBlocks + i
}

// runsOf is how many names begin a run, and so take one key: the heads of
// chains, and where a chain leaves what it shares with the first of its group.
func runsOf(entries int) int {
	runs := 0
	for head := 0; head < entries; head += chainBlocks {
		runs++
		if head/chainBlocks%groupChains != 0 && head+sharedBlocks < entries {
			runs++
		}
	}
	return runs
}

// idOf is the id of a block by its number.
func idOf(n uint64) block.ID { return block.Sum(block.Bits128, seedOf(n)) }

// seedOf is what the id of a block is the hash of.
func seedOf(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 9), n)[:9] }

// keyOf is the key of a block by its number, in the form of SGLang's.
func keyOf(n uint64) string {
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], n)
	sum := sha256.Sum256(p[:])
	return hex.EncodeToString(sum[:])
}

// batches are the segments that hold the blocks 0 to entries.
func batches(entries int) iter.Seq2[index.Batch, error] {
	return func(yield func(index.Batch, error) bool) {
		for from := 0; from < entries; from += segmentBlocks {
			s := index.Segment{Rank: 1, Incarnation: 1, File: uint64(from / segmentBlocks)}
			if !yield(newBatch(s, 1, uint64(from), min(segmentBlocks, entries-from)), nil) {
				return
			}
		}
	}
}

// newBatch is n blocks and their names, hashed, in one segment.
func newBatch(s index.Segment, mark, first uint64, n int) index.Batch {
	b := index.Batch{Segment: s, Mark: mark}
	for i := range uint64(n) {
		stored := storedAt(s, first+i, i)
		b.Blocks = append(b.Blocks, stored)
		b.Names = append(b.Names, index.NameOf(stored.Info.ID, nameOf(first+i)))
	}
	return b
}

func storedAt(s index.Segment, n, at uint64) index.Block {
	frame := int64(4096 + at/16*16*(BlockBytes+4096))
	return index.Block{
		Info: block.Info{ID: idOf(n), Size: BlockBytes, CRC: uint32(n)},
		Place: index.Place{
			Segment: s, Offset: frame + 4096 + int64(at%16)*BlockBytes, Stored: BlockBytes, StoredCRC: uint32(n),
		},
	}
}

// nameOf is the name of block n. The first blocks of a chain that is not the
// first of its group are on nobody's path: they are a chain of their own, and
// the rest continues what is shared.
func nameOf(n uint64) block.Name {
	chain, i := n/chainBlocks, n%chainBlocks
	name := block.Name{Namespace: namespace, Key: keyOf(n), Depth: uint32(i), Seq: n + 1}
	switch {
	case i == 0:
	case i == sharedBlocks:
		name.Parent = keyOf(numberOf(chain, i-1))
	default:
		name.Parent = keyOf(n - 1)
	}
	return name
}

// footprint is the memory of this process, in bytes.
type footprint struct{ rss, heap int64 }

func readFootprint() footprint {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f := footprint{heap: int64(m.HeapAlloc)}
	p, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return f
	}
	if fields := bytes.Fields(p); len(fields) > 1 {
		if pages, err := strconv.ParseInt(string(fields[1]), 10, 64); err == nil {
			f.rss = pages * int64(os.Getpagesize())
		}
	}
	return f
}
