package cascade

import (
	"fmt"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// TestMaxFiles: of a rank that starts with too many small segments one is left when the
// background has merged, which ends, and every block is served.
func TestMaxFiles(t *testing.T) {
	const n, size = 40, 30_000
	dir := t.TempDir()
	fill, err := lustre.Open(lustre.Options{Dir: dir, Incarnation: 1, SegmentBytes: 1}) // a segment for each block
	if err != nil {
		t.Fatal(err)
	}
	var names []block.Name
	for i := range n {
		p := data(uint64(i+1), size)
		name := block.Name{Namespace: "ns", Key: fmt.Sprint("k", i), Seq: uint64(i + 1), Depth: uint32(i)}
		if i > 0 {
			name.Parent = names[i-1].Key
		}
		names = append(names, name)
		it := tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: size, CRC: block.CRC(p)}, Names: []block.Name{name}, Data: p}
		if err := fill.Put(t.Context(), it); err != nil {
			t.Fatal(err)
		}
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, 8<<20, false)
	if err := r.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	tier, err := lustre.Open(lustre.Options{Dir: dir, Incarnation: 2, MaxFiles: 16})
	if err != nil {
		t.Fatal(err)
	}
	r.cold = tier
	r.open()
	r.space.MergeAll(t.Context())
	if m := tier.Merged(); m.Merges != 1 || m.Segments != n || m.Blocks != n {
		t.Errorf("%+v", m)
	}
	for i, name := range names {
		r.want(name.Key, data(uint64(i+1), size))
	}
	if err := r.Store.Close(t.Context()); err != nil { // ends what unlinks
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "agg_*")); len(left) != 1 {
		t.Errorf("segments %v are left", left)
	}
}
