package bench

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
	indexNamespace  = "Llama-3.1-70B-0123456789abcdef0123456789abcdef"
	indexChain      = 1024 // blocks
	indexShared     = 128  // blocks at the head of a chain that others begin with too
	indexGroup      = 8    // chains that begin alike
	indexPerSegment = 512  // blocks
	indexBlock      = 2 << 20
)

// indexNumber is the number of a block of a chain: a shared one has that of the
// first chain of its group.
func indexNumber(chain, i uint64) uint64 {
	if i < indexShared {
		chain -= chain % indexGroup
	}
	return chain*indexChain + i
}

// indexRuns is how many names begin a run, and so take one key: the heads of
// chains, and where a chain leaves what it shares with the first of its group.
func indexRuns(entries int) int {
	runs := 0
	for head := 0; head < entries; head += indexChain {
		runs++
		if head/indexChain%indexGroup != 0 && head+indexShared < entries {
			runs++
		}
	}
	return runs
}

// indexID is the id of a block by its number.
func indexID(n uint64) block.ID { return block.Sum(block.Bits128, indexSeed(n)) }

// indexSeed is what the id of a block is the hash of.
func indexSeed(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 0, 9), n)[:9] }

// indexKey is the key of a block by its number, in the form of SGLang's.
func indexKey(n uint64) string {
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], n)
	sum := sha256.Sum256(p[:])
	return hex.EncodeToString(sum[:])
}

// indexBatches are the segments that hold the blocks 0 to entries.
func indexBatches(entries int) iter.Seq2[index.Batch, error] {
	return func(yield func(index.Batch, error) bool) {
		for f := range indexFooters(entries) {
			if !yield(f.batch(), nil) {
				return
			}
		}
	}
}

// indexFooter is what the footer of a segment holds, decoded.
type indexFooter struct {
	segment index.Segment
	blocks  []index.Block
	names   []block.Name
}

// indexFooters makes the footers of all segments, one after the other.
func indexFooters(entries int) iter.Seq[indexFooter] {
	return func(yield func(indexFooter) bool) {
		for from := 0; from < entries; from += indexPerSegment {
			f := indexFooter{segment: index.Segment{Rank: 1, Incarnation: 1, File: uint64(from / indexPerSegment)}}
			for n := uint64(from); n < uint64(min(entries, from+indexPerSegment)); n++ {
				f.blocks = append(f.blocks, indexStored(f.segment, n, n%indexPerSegment))
				f.names = append(f.names, indexName(n))
			}
			if !yield(f) {
				return
			}
		}
	}
}

func indexStored(s index.Segment, n, at uint64) index.Block {
	frame := int64(4096 + at/16*16*(indexBlock+4096))
	return index.Block{
		Info: block.Info{ID: indexID(n), Size: indexBlock, CRC: uint32(n)},
		Place: index.Place{
			Segment: s, Offset: frame + 4096 + int64(at%16)*indexBlock, Stored: indexBlock, StoredCRC: uint32(n),
		},
	}
}

// indexName is the name of block n. The first blocks of a chain that is not the
// first of its group are on nobody's path: they are a chain of their own, and
// the rest continues what is shared.
func indexName(n uint64) block.Name {
	chain, i := n/indexChain, n%indexChain
	name := block.Name{Namespace: indexNamespace, Key: indexKey(n), Depth: uint32(i), Seq: n + 1}
	switch {
	case i == 0:
	case i == indexShared:
		name.Parent = indexKey(indexNumber(chain, i-1))
	default:
		name.Parent = indexKey(n - 1)
	}
	return name
}

// batch hashes the names, as whoever reads a footer has to.
func (f indexFooter) batch() index.Batch {
	b := index.Batch{Segment: f.segment, Mark: 1, Blocks: f.blocks, Names: make([]index.Name, len(f.names))}
	for i, n := range f.names {
		b.Names[i] = index.NameOf(f.blocks[i].Info.ID, n)
	}
	return b
}

// indexBatch is a chain of new blocks in one segment.
func indexBatch(s index.Segment, mark uint64, number func(i uint64) uint64, from, to uint64) index.Batch {
	f := indexFooter{segment: s}
	for i := from; i < to; i++ {
		f.blocks = append(f.blocks, indexStored(s, number(i), i))
		f.names = append(f.names, indexName(number(i)))
	}
	b := f.batch()
	b.Mark = mark
	return b
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
