package draft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Draft collects what a step changes and hands it to Pebble in the order of its
// keys. Pebble sorts large batches itself, by comparing keys wherever in the
// batch they lie; that was a fifth of what loading an index took. Here keys, most
// of them hashes, are dealt into buckets first, the few comparisons left are of
// numbers side by side, and Pebble finds the batch in order.
type Draft struct {
	text []byte // keys and values, one behind the other
	ops  []op

	ordered []op // memory of sorted
	ends    []int
}

// Prepare empties the draft and makes room for so many bytes and changes.
func (d *Draft) Prepare(text, ops int) {
	d.text, d.ops = slices.Grow(d.text[:0], text), slices.Grow(d.ops[:0], ops)
}

// Empty reports whether nothing changes.
func (d *Draft) Empty() bool { return len(d.ops) == 0 }

// op sets a key or deletes it.
type op struct {
	head  uint64 // the first bytes of the key, most of them of a hash
	at    int    // of the key in text; the value lies behind it
	key   int32  // length
	value int32  // length, -1: delete
}

// Set notes a change; both slices are only read.
func (d *Draft) Set(key, value []byte) {
	d.add(key, int32(len(value)))
	d.text = append(d.text, value...)
}

// Delete notes that a key goes.
func (d *Draft) Delete(key []byte) { d.add(key, -1) }

func (d *Draft) add(key []byte, value int32) {
	d.ops = append(d.ops, op{head: headOf(key), at: len(d.text), key: int32(len(key)), value: value})
	d.text = append(d.text, key...)
}

// headOf is a number in the order of keys, as far as eight bytes decide.
func headOf(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var p [8]byte
	copy(p[:], key)
	return binary.BigEndian.Uint64(p[:])
}

func (d *Draft) keyOf(o *op) []byte { return d.text[o.at:][:o.key] }

// compare orders by key, and equal keys as they came.
func (d *Draft) compare(a, b op) int {
	if a.head != b.head {
		return cmp.Compare(a.head, b.head)
	}
	if c := bytes.Compare(d.keyOf(&a), d.keyOf(&b)); c != 0 {
		return c
	}
	return cmp.Compare(a.at, b.at)
}

// sorted returns the changes in order. A bucket is for the keys of one kind whose
// hashes begin alike, some eight of them; kinds are small numbers.
func (d *Draft) sorted() []op {
	const kindBits = 8
	hashBits := bits.Len(uint(len(d.ops) / 8))
	shift := 64 - kindBits - hashBits
	most := uint64(0)
	for i := range d.ops {
		most = max(most, d.ops[i].head>>shift)
	}
	d.ends = slices.Grow(d.ends[:0], int(most)+1)[:most+1]
	d.ordered = slices.Grow(d.ordered[:0], len(d.ops))[:len(d.ops)]
	ends, out := d.ends, d.ordered
	clear(ends)
	for i := range d.ops {
		ends[d.ops[i].head>>shift]++
	}
	sum := 0
	for i, n := range ends {
		ends[i], sum = sum, sum+n
	}
	for _, o := range d.ops {
		at := &ends[o.head>>shift]
		out[*at] = o
		*at++
	}
	from := 0
	for _, end := range ends {
		slices.SortFunc(out[from:end], d.compare)
		from = end
	}
	return out
}

// Batch makes a batch of the last change of each key. The draft is spent.
func (d *Draft) Batch(db *pebble.DB) (*pebble.Batch, error) {
	ops := d.sorted()
	b := db.NewBatchWithSize(len(d.text) + 8*len(d.ops) + 64)
	for i := range ops {
		o := &ops[i]
		key := d.keyOf(o)
		if i+1 < len(ops) && o.head == ops[i+1].head && bytes.Equal(key, d.keyOf(&ops[i+1])) {
			continue
		}
		var err error
		if o.value < 0 {
			err = b.Delete(key, nil)
		} else {
			err = b.Set(key, d.text[o.at+int(o.key):][:o.value], nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}
