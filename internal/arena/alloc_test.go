package arena

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRoundingWasteIsBounded(t *testing.T) {
	for size := int64(1); size < 64<<20; size += 1 + size/97 {
		n := RoundSize(size)
		if n < size || n != RoundSize(n) {
			t.Fatalf("RoundSize(%d) = %d, RoundSize of that %d", size, n, RoundSize(n))
		}
		if waste := n - size; size > 448 && waste*8 >= n {
			t.Errorf("size %d occupies %d: wastes %d, one part in eight or more", size, n, waste)
		} else if size <= 448 && waste >= minCell {
			t.Errorf("size %d occupies %d", size, n)
		}
	}
	for _, exact := range []int64{4096, 64 << 10, 256 << 10, 2 << 20, 32 << 20, 80 << 20} {
		if RoundSize(exact) != exact {
			t.Errorf("%d is not a class of its own: %d", exact, RoundSize(exact))
		}
	}
}

func TestCellClassesRoundTrip(t *testing.T) {
	for c := range numClasses {
		cell := cellSize(c)
		if cellClass(cell) != c || RoundSize(cell) != cell {
			t.Errorf("class %d: cell %d has class %d and rounds to %d", c, cell, cellClass(cell), RoundSize(cell))
		}
		if tail := slabPages(cell) * Page % cell; tail*100 >= slabPages(cell)*Page*9 {
			t.Errorf("cell %d: a slab's tail wastes %d of %d", cell, tail, slabPages(cell)*Page)
		}
	}
}

type alloced struct {
	Extent
	zone Zone
}

// churn allocates and releases at random and checks that nothing overlaps.
func churn(t *testing.T, a *Allocator, owner []int32, r *rand.Rand, steps int, sizes func() int64) []alloced {
	t.Helper()
	var live []alloced
	mark := func(e alloced, from, to int32) {
		for p := e.Offset / minCell; p < (e.Offset+RoundSize(e.Size))/minCell; p++ {
			if owner[p] != from {
				t.Fatalf("cell %d of %+v has owner %d, want %d", p, e, owner[p], from)
			}
			owner[p] = to
		}
	}
	for i := range steps {
		if len(live) > 0 && r.IntN(5) < 2 {
			k := r.IntN(len(live))
			mark(live[k], 1, 0)
			a.Release(live[k].Offset, live[k].Size)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		e := alloced{Extent{Size: sizes()}, Zone(r.IntN(2))}
		off, err := a.Alloc(e.Size, e.zone)
		if errors.Is(err, ErrNoSpace) {
			continue
		} else if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if e.Size > MaxCell && off%Page != 0 {
			t.Fatalf("%d bytes at %d: not on a page", e.Size, off)
		}
		e.Offset = off
		mark(e, 0, 1)
		live = append(live, e)
	}
	return live
}

func mixedSizes(r *rand.Rand) func() int64 {
	return func() int64 { return 1 + int64(r.ExpFloat64()*float64(int64(1)<<(6+r.IntN(14)))) }
}

func TestAllocatorNeverOverlapsAndGivesAllBack(t *testing.T) {
	const size = 64 << 20
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := NewAllocator(make([]byte, size/Page))
		a.Grow(size / 2)
		a.Grow(size / 2)
		live := churn(t, a, make([]int32, size/minCell), r, 20000, mixedSizes(r))
		var used int64
		for _, e := range live {
			used += RoundSize(e.Size)
		}
		if a.Used() != used {
			t.Fatalf("Used() = %d, want %d", a.Used(), used)
		}
		for _, e := range live {
			a.Release(e.Offset, e.Size)
		}
		if a.Free() != size || len(a.slabs) != 0 || len(a.runs.byStart) != 1 || a.Used() != 0 {
			t.Fatalf("after all was released: %v", a)
		}
		if slices.ContainsFunc(a.tags, func(b byte) bool { return b != 0 }) {
			t.Fatal("a tag outlived its slab")
		}
	}
}

func TestAdoptContinuesWhereTheOtherStopped(t *testing.T) {
	const size = 32 << 20
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 2))
		tags := make([]byte, size/Page)
		a := NewAllocator(tags)
		a.Grow(size)
		owner := make([]int32, size/minCell)
		live := churn(t, a, owner, r, 4000, mixedSizes(r))

		records := map[int64]bool{}
		WalkRecords(tags, size, func(off, cell int64) { records[off] = true })
		used := make([]Extent, len(live))
		for i, e := range live {
			used[i] = e.Extent
			if e.zone == Records && e.Size <= MaxCell && !records[e.Offset] {
				t.Fatalf("record at %d is not among the walked cells", e.Offset)
			}
		}
		b := NewAllocator(tags)
		if rejected := b.Adopt(size, used); rejected != nil {
			t.Fatalf("rejected %v", rejected)
		}
		if b.Used() != a.Used() {
			t.Fatalf("Used() = %d, want %d", b.Used(), a.Used())
		}
		for _, e := range live {
			b.Release(e.Offset, e.Size)
		}
		if b.Free() != size {
			t.Fatalf("after all was released: %v", b)
		}
	}
}

func TestAdoptRejectsWhatCanNotBe(t *testing.T) {
	const size = 4 << 20
	tags := make([]byte, size/Page)
	a := NewAllocator(tags)
	a.Grow(size)
	cell, _ := a.Alloc(100, Payload)
	run, _ := a.Alloc(1<<20, Payload)
	for name, bad := range map[string]Extent{
		"past the end":       {size - Page, 1 << 20},
		"negative":           {-Page, 1 << 20},
		"between pages":      {run + 64, 64 << 10},
		"twice the same run": {run, 1 << 20},
		"inside a run":       {run + 8*Page, 64 << 10},
		"twice a cell":       {cell, 100},
		"between cells":      {cell + 8, 100},
		"over a slab":        {cell / Page * Page, 64 << 10},
		"cell where no slab": {2 << 20, 100},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewAllocator(slices.Clone(tags))
			used := []Extent{{cell, 100}, {run, 1 << 20}, bad}
			rejected := b.Adopt(size, used)
			if len(rejected) != 1 || (rejected[0] != 2 && used[rejected[0]] != bad) {
				t.Fatalf("rejected %v, want the bad one", rejected)
			}
			if b.Used() != a.Used() {
				t.Errorf("Used() = %d, want %d", b.Used(), a.Used())
			}
		})
	}
}

func TestCompactMakesRoomWithoutLosingBytes(t *testing.T) {
	const size, small, large = 16 << 20, 64 << 10, 4 << 20
	space := make([]byte, size)
	a := NewAllocator(make([]byte, size/Page))
	a.Grow(size)
	r := rand.New(rand.NewPCG(7, 7))
	var objects []Object
	for {
		off, err := a.Alloc(small, Payload)
		if err != nil {
			break
		}
		objects = append(objects, Object{Extent{off, small}, r.IntN(40) > 0})
	}
	// Free every other one: half the space is free, no two pieces touch.
	var kept []Object
	for i, o := range objects {
		if i%2 == 0 {
			a.Release(o.Offset, o.Size)
			continue
		}
		kept = append(kept, o)
	}
	want := make([]byte, len(kept))
	for i, o := range kept {
		want[i] = byte(i)
		for j := range o.Size {
			space[o.Offset+j] = byte(i)
		}
	}
	if _, err := a.Alloc(large, Payload); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("the space is not fragmented: %v", err)
	}
	moved := 0
	off, err := a.Compact(large, kept, func(i int, to int64) {
		if !kept[i].Movable {
			t.Errorf("object %d was moved though it may not", i)
		}
		copy(space[to:to+small], space[kept[i].Offset:])
		kept[i].Offset = to
		moved++
	})
	if err != nil {
		t.Fatal(err)
	}
	clear(space[off : off+large])
	for i, o := range kept {
		if b := space[o.Offset : o.Offset+o.Size]; slices.ContainsFunc(b, func(x byte) bool { return x != want[i] }) {
			t.Fatalf("object %d at %d lost its bytes", i, o.Offset)
		}
	}
	if moved == 0 || moved > large/small {
		t.Errorf("moved %d objects", moved)
	}
	a.Release(off, large)
	for _, o := range kept {
		a.Release(o.Offset, o.Size)
	}
	if a.Free() != size || a.Used() != 0 {
		t.Fatalf("after all was released: %v", a)
	}
}

func TestCompactSaysWhenNothingCanMove(t *testing.T) {
	const size = 4 << 20
	a := NewAllocator(make([]byte, size/Page))
	a.Grow(size)
	var objects []Object
	for {
		off, err := a.Alloc(64<<10, Payload)
		if err != nil {
			break
		}
		objects = append(objects, Object{Extent{off, 64 << 10}, false})
	}
	var kept []Object
	for i, o := range objects {
		if i%2 == 0 {
			a.Release(o.Offset, o.Size)
		} else {
			kept = append(kept, o)
		}
	}
	free := a.Free()
	if _, err := a.Compact(1<<20, kept, func(int, int64) { t.Error("moved") }); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	if a.Free() != free {
		t.Errorf("free space went from %d to %d", free, a.Free())
	}
}

func BenchmarkAllocRelease(b *testing.B) {
	const size = 1 << 30
	a := NewAllocator(make([]byte, size/Page))
	a.Grow(size)
	for b.Loop() {
		off, _ := a.Alloc(2<<20, Payload)
		rec, _ := a.Alloc(128, Records)
		a.Release(off, 2<<20)
		a.Release(rec, 128)
	}
}
