package memory

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
)

// TestNameSet compares a set with a map while names come, are replaced and go,
// where many have the same sum and where none have.
func TestNameSet(t *testing.T) {
	for name, sums := range map[string]uint64{"one sum": 1, "few sums": 7, "many sums": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			var x nameSet
			rng, want := rand.New(rand.NewPCG(1, sums)), map[int64]int64{} // number of a name to its record
			const names = 60
			sum := func(n int64) uint64 { return uint64(n*7919+3) % sums }
			find := func(n int64) int {
				return x.find(sum(n), func(r nameRef) bool { return r.size == n }) // size plays the name
			}
			for step := range int64(20_000) {
				n := rng.Int64N(names)
				i := find(n)
				if record, there := want[n]; there != (i >= 0) || there && x.refs[i].offset != record {
					t.Fatalf("step %d: name %d is at %d, is there: %v", step, n, i, there)
				}
				switch r := (nameRef{step, n, sum(n)}); {
				case i >= 0 && rng.IntN(3) > 0:
					x.remove(i)
					delete(want, n)
				case i >= 0:
					x.replace(i, r)
					want[n] = step
				default:
					x.add(r)
					want[n] = step
				}
				if len(x.refs) != len(want) {
					t.Fatalf("step %d: %d names, want %d", step, len(x.refs), len(want))
				}
			}
		})
	}
}

// TestManyNamesOfOneBlock: names of one block are told apart however many there
// are, before and after a crash.
func TestManyNamesOfOneBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.arena")
	tr := openAll(t, path, MinBytes)
	it := testItem(1, 5000)
	it.Names = nil
	if err := tr.Put(t.Context(), it); err != nil {
		t.Fatal(err)
	}
	link := func(i int, seq uint64) {
		if err := tr.Link(it.Info.ID, block.Name{Namespace: "ns", Key: fmt.Sprint(i), Seq: seq}); err != nil {
			t.Fatal(err)
		}
	}
	const names = 3000
	for i := range names {
		link(i, 1)
	}
	for i := 0; i < names; i += 3 {
		link(i, 2)
	}
	for i := 1; i < names; i += 3 {
		if err := tr.Unlink(it.Info.ID, block.Name{Namespace: "ns", Key: fmt.Sprint(i), Seq: 3}); err != nil {
			t.Fatal(err)
		}
	}
	seqs := func(tr *Tier) (sum [3]int) {
		s := tr.slots[it.Info.ID]
		for _, r := range s.names.refs {
			_, n, ok := readName(tr.bytesOf(r.offset, r.size))
			var i int
			if _, err := fmt.Sscan(n.Key, &i); !ok || err != nil || i%3 == 1 || n.Seq != []uint64{2, 0, 1}[i%3] {
				t.Errorf("a record of %+v", n)
			}
			sum[i%3]++
		}
		return sum
	}
	if got, after := seqs(tr), seqs(crashed(t, path)); got != [3]int{1000, 0, 1000} || after != got {
		t.Errorf("%v names, %v after a crash", got, after)
	}
}
