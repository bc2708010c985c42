package residency

import (
	"testing"

	"cascadekv/internal/block"
)

// However large a tier is, one call of find looks at some of its blocks; calls one
// after the other look at all of them.
func TestFindIsBounded(t *testing.T) {
	o := Order{Nodes: make([]*Block, 3*findStep+5)}
	for i := range o.Nodes {
		if i%7 > 0 {
			o.Nodes[i] = NewBlock(block.Info{Size: int64(i)})
		}
	}
	seen := 0
	for range 4 {
		looked := 0
		o.Find(func(*Block) bool { looked++; return false })
		if looked > findStep {
			t.Fatalf("looked at %d blocks", looked)
		}
		seen += looked
	}
	if all := len(o.Nodes) * 6 / 7; seen < all {
		t.Errorf("four looks saw %d blocks of %d", seen, all)
	}
	last := o.Nodes[len(o.Nodes)-1]
	var found *Block
	for range 4 {
		if found == nil {
			found = o.Find(func(b *Block) bool { return b == last })
		}
	}
	if found != last {
		t.Error("the last block is not found")
	}
	if b := (&Order{}).Find(func(*Block) bool { return true }); b != nil {
		t.Error("found in an empty tier")
	}
}
