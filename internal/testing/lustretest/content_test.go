package lustretest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// batch is one put of a storm: what it holds follows from these numbers alone,
// so that whatever comes back can be told right from wrong.
type batch struct {
	storm uint64
	seq   uint64
}

// namespace is that of every name here.
const namespace = "storm"

// sizes are of blocks inside the entry table, of one page, of no whole number
// of pages, and of CASCADE's smallest.
var sizes = []int{100, 3000, 4096, 20001, 43008, 130000}

func (b batch) random() *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], b.storm)
	binary.LittleEndian.PutUint64(key[8:], b.seq)
	return rand.NewChaCha8(key)
}

// items makes the batch's blocks. Each has a name of its own, and the first one
// has the name that the batch's lane moves from batch to batch.
func (b batch) items() []tiers.Item {
	src := b.random()
	r := rand.New(src)
	items := make([]tiers.Item, 1+r.IntN(3))
	for i := range items {
		data := make([]byte, sizes[r.IntN(len(sizes))])
		src.Read(data) // it never fails
		items[i] = tiers.Item{
			Info:  block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)},
			Names: []block.Name{{Namespace: namespace, Key: b.key(i), Seq: b.seq}},
			Data:  data,
		}
	}
	items[0].Names = append(items[0].Names, block.Name{Namespace: namespace, Key: b.moving(), Seq: b.seq})
	return items
}

func (b batch) key(i int) string { return fmt.Sprintf("%d/%d/%d", b.storm, b.seq, i) }

// lanes is how many names of a storm move.
const lanes = 3

// moving is the name that every batch of one lane takes over from the one
// before it.
func (b batch) moving() string { return fmt.Sprintf("%d/lane%d", b.storm, b.seq%lanes) }
