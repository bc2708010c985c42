package index

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"cascadekv/internal/block"
)

// options are of an index in memory.
func memOptions() Options {
	return Options{Dir: "/idx", Campaign: "test", fs: vfs.NewMem(), fsType: func(string) (int64, error) { return 0, nil }}
}

func open(t *testing.T, o Options) *Index {
	t.Helper()
	x, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func key(n uint64) Key {
	var text [8]byte
	binary.BigEndian.PutUint64(text[:], n)
	return NamespaceOf("ns").Key(string(text[:]))
}

func id(n uint64) block.ID {
	var text [8]byte
	binary.BigEndian.PutUint64(text[:], n)
	return block.Sum(block.Bits128, text[:])
}

func seg(n uint64) Segment { return Segment{Rank: 3, Incarnation: 7, File: n} }

// blockIn is a block at a place that its number tells.
func blockIn(s Segment, n uint64) Block {
	at := int64(n+1) * 4096
	return Block{
		Info:  block.Info{ID: id(n), Size: int64(n%5) * 100, CRC: uint32(n)},
		Place: Place{Segment: s, Offset: at, Stored: int64(n%5) * 100, StoredCRC: uint32(n)},
	}
}

// chain is names of a chain, from a depth on, whose blocks bear their numbers.
func chain(seq uint64, numbers ...uint64) []Name {
	var out []Name
	for i, n := range numbers {
		name := Name{Key: key(n), ID: id(n), Depth: uint32(i), Seq: seq}
		if i > 0 {
			name.Parent = key(numbers[i-1])
		}
		out = append(out, name)
	}
	return out
}

func put(t *testing.T, x *Index, b Batch) {
	t.Helper()
	if err := x.PutBatch(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

func numbers(from, to uint64) (out []uint64) {
	for n := from; n < to; n++ {
		out = append(out, n)
	}
	return out
}

func keys(numbers ...uint64) (out []Key) {
	for _, n := range numbers {
		out = append(out, key(n))
	}
	return out
}

func stored(s Segment, numbers ...uint64) (out []Block) {
	for _, n := range numbers {
		out = append(out, blockIn(s, n))
	}
	return out
}

func probe(t *testing.T, x *Index, want int, numbers ...uint64) {
	t.Helper()
	if n, err := leading(x, keys(numbers...)); err != nil || n != want {
		t.Errorf("probe of %d: %d, %v; want %d", len(numbers), n, err, want)
	}
}

// iterate calls fn for every block, in the order of ids.
func (x *Index) iterate(fn func(Block) error) error {
	const most = 1024
	for from := []byte{kindBlock}; from != nil; {
		var some []Block
		err := x.read(func(r *reader) (err error) {
			from, err = r.scan(from, most, kindBlock, func(key, value []byte) error {
				id, err := decodeBlockKey(key)
				if err != nil {
					return err
				}
				rec, err := decodeBlockRecord(value)
				if b, ok := r.engine.blockAt(id, rec.place); ok && err == nil {
					some = append(some, b)
				}
				return err
			})
			return err
		})
		for i := 0; i < len(some) && err == nil; i++ {
			err = fn(some[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func decodeBlockKey(p []byte) (id block.ID, err error) {
	if len(p) != 17 && len(p) != 33 || p[0] != kindBlock {
		return id, badFormat("block key of %d bytes", len(p))
	}
	copy(id[:], p[1:])
	return id, nil
}

// placeMost is the length of the longest place.
const placeMost = placeFixed + 3*binary.MaxVarintLen64 + 4

// leading returns how many names of a chain, head first, lead to a block without a gap.
func leading(x *Index, chain []Key) (n int, err error) {
	err = x.Probe(chain, func(_ int, p *Presence) bool {
		found := p != nil && !p.Lost
		if found {
			n++
		}
		return found
	})
	if err != nil {
		n = 0
	}
	return n, err
}
