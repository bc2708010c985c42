package cascade

import (
	"testing"

	"cascadekv/internal/block"
)

// However large a tier is, one call of find looks at some of its blocks; calls one
// after the other look at all of them.
func TestFindIsBounded(t *testing.T) {
	o := order{nodes: make([]*blockState, 3*findStep+5)}
	for i := range o.nodes {
		if i%7 > 0 {
			o.nodes[i] = newBlock(block.Info{Size: int64(i)})
		}
	}
	seen := 0
	for range 4 {
		looked := 0
		o.find(func(*blockState) bool { looked++; return false })
		if looked > findStep {
			t.Fatalf("looked at %d blocks", looked)
		}
		seen += looked
	}
	if all := len(o.nodes) * 6 / 7; seen < all {
		t.Errorf("four looks saw %d blocks of %d", seen, all)
	}
	last := o.nodes[len(o.nodes)-1]
	var found *blockState
	for range 4 {
		if found == nil {
			found = o.find(func(b *blockState) bool { return b == last })
		}
	}
	if found != last {
		t.Error("the last block is not found")
	}
	if b := (&order{}).find(func(*blockState) bool { return true }); b != nil {
		t.Error("found in an empty tier")
	}
}
