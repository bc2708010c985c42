package eviction

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
)

// bounded is a change of options: room for about so many names of the tests.
func bounded(n int64) func(*residency.Options) {
	return func(o *residency.Options) { o.Limits.NameBytes = n * names.Cost("12345678", "12345678") }
}

// put makes room for a name and puts it.
func put(r *parttest.Rank, n block.Name, data []byte) error {
	nb := NewNameBudget(r.State)
	r.Mu.Lock()
	err := nb.MakeRoomLocked(n.Namespace, n.Key)
	r.Mu.Unlock()
	if err == nil {
		r.Put(n, data)
	}
	return err
}

// However many names come, in whatever shape, the heap that they take has a bound, and
// no chain has a hole: in memory alone, and where the cold tier decides what is least
// worth keeping.
func TestNamesAreForgottenFromTheEndsOfChains(t *testing.T) {
	const bound, puts = 300, 1500
	shapes := map[string]func(i int) (n block.Name, p []byte){
		"blocks":             func(i int) (block.Name, []byte) { return parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 64) },
		"names of one block": func(i int) (block.Name, []byte) { return parttest.Name(fmt.Sprint(i)), parttest.Data(1, 64) },
		"chains": func(i int) (block.Name, []byte) {
			n := parttest.Name(fmt.Sprint(i))
			if i%20 > 0 {
				n.Parent = fmt.Sprint(i - 1)
			}
			return n, parttest.Data(uint64(i), 64)
		},
	}
	for name, shape := range shapes {
		for _, p := range policy.Names() {
			for _, cold := range []bool{false, true} {
				t.Run(fmt.Sprint(name, "/", p, "/", cold), func(t *testing.T) {
					r := parttest.New(t, bounded(bound), func(o *residency.Options) {
						if o.Policy = p; cold {
							o.Cold, o.Limits.ColdBytes = parttest.NewFiles(t), 1<<30
						}
					})
					for i := range puts {
						n, data := shape(i)
						if cold && i/20%3 == 0 && r.Mu.Blocks[block.Sum(r.IDBits, data)] == nil {
							r.PutCold(n, data)
							continue
						}
						if err := put(r, n, data); err != nil {
							t.Fatalf("put %d: %v", i, err)
						}
					}
					limit := r.Limits.Load().NameBytes
					if got := r.Mu.Names.Bytes(); got > limit+limit/8 || r.Mu.Names.Len() < bound/2 || r.Count.Stats.Forgotten == 0 {
						t.Errorf("%d of %d bytes, %d names, %d forgotten", got, limit, r.Mu.Names.Len(), r.Count.Stats.Forgotten)
					}
					if cold && r.Cold.Files.Usage().Blocks != below(r) {
						t.Errorf("%d blocks are in the cold tier, want %d", r.Cold.Files.Usage().Blocks, below(r))
					}
					parttest.NoHoles(t, r.State)
					parttest.Check(t, r.State)
				})
			}
		}
	}
}

// below counts the blocks that should be in the cold tier.
func below(r *parttest.Rank) (n int) {
	for _, b := range r.Mu.Blocks {
		if b.Cold {
			n++
		}
	}
	return n
}

// What continues in the cold tier alone stays: a block, and names of a block with many.
func TestParentsOfWhatIsBelowStay(t *testing.T) {
	r := parttest.New(t, bounded(60), parttest.NewFiles(t).Use)
	var parents []string
	for i := range 20 {
		key := fmt.Sprint("parent", i)
		r.Put(parttest.Name(key), parttest.Data(uint64(i%2)*uint64(i), 64)) // ten of them are one block
		r.PutCold(parttest.Name(fmt.Sprint("child", i), key), parttest.Data(uint64(100+i), 64))
		r.Put(parttest.Name(fmt.Sprint("free", i)), parttest.Data(0, 64))
		parents = append(parents, key)
	}
	for i := range 30 {
		if err := put(r, parttest.Name(fmt.Sprint("new", i)), parttest.Data(uint64(1000+i), 64)); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Has(parents...); len(got) != len(parents) || r.Count.Stats.Forgotten == 0 {
		t.Errorf("%d parents of %d are there, %d names are forgotten", len(got), len(parents), r.Count.Stats.Forgotten)
	}
	parttest.NoHoles(t, r.State)
	parttest.Check(t, r.State)
}

// Where every block is in use a new name is refused, and a name that is there can
// still be replaced.
func TestNamesInUseAreNotForgotten(t *testing.T) {
	r := parttest.New(t, bounded(50))
	var views []*residency.View
	var failed error
	for i := 0; failed == nil && i < 100; i++ {
		key := fmt.Sprint(i)
		if failed = put(r, parttest.Name(key), parttest.Data(uint64(i), 64)); failed == nil {
			views = append(views, r.Pin(key))
		}
	}
	if !errors.Is(failed, residency.ErrNoRoom) || !errors.Is(failed, errNames) || len(views) < 50 {
		t.Errorf("after %d names: %v", len(views), failed)
	}
	if err := put(r, parttest.Name("0"), parttest.Data(1000, 64)); err != nil {
		t.Error(err)
	}
	for _, v := range views {
		v.Release()
	}
	if err := put(r, parttest.Name("again"), parttest.Data(2000, 64)); err != nil {
		t.Error(err)
	}
	parttest.Check(t, r.State)
}

// What is leased is forgotten when there is nothing else.
func TestLeasedNamesAreTheLastToGo(t *testing.T) {
	r := parttest.New(t, bounded(20), parttest.NewFiles(t).Use) // which takes blocks: leases hold none in memory
	for i := range 20 {
		r.Put(parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 64))
		if i < 10 {
			r.Leases.Renew("ns", fmt.Sprint(i), "me", time.Hour)
		}
	}
	for i := 20; i < 25; i++ {
		if err := put(r, parttest.Name(fmt.Sprint(i)), parttest.Data(uint64(i), 64)); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Has("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"); len(got) != 10 || r.Count.Stats.Forgotten == 0 {
		t.Errorf("of the leased names %v are there, %d are forgotten", got, r.Count.Stats.Forgotten)
	}
	parttest.Check(t, r.State)
}

func hasRoom(r *parttest.Rank) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return NewNameBudget(r.State).HasRoomLocked()
}

func isTight(r *parttest.Rank) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return NewNameBudget(r.State).TightLocked()
}

// What others left is taken in while there is room, for none is forgotten; near the
// bound the cold tier is ranked.
func TestRoomForWhatOthersLeft(t *testing.T) {
	r := parttest.New(t, bounded(40), parttest.NewFiles(t).Use)
	for i := 0; hasRoom(r) && i < 100; i++ {
		if tight := isTight(r); tight != (r.Mu.Names.Bytes() >= r.Limits.Load().NameBytes/8*7) {
			t.Errorf("%d names are tight: %v", i, tight)
		}
		r.Put(parttest.Name(fmt.Sprint("12345", i)), parttest.Data(uint64(i), 64))
	}
	if n := r.Mu.Names.Len(); n < 30 || n > 60 || !isTight(r) {
		t.Errorf("there is room for %d names", n)
	}
	select {
	case <-r.CleanerWake:
	default:
	}
	if err := put(r, parttest.Name("more"), parttest.Data(1000, 64)); err != nil || len(r.CleanerWake) != 1 {
		t.Errorf("%v; the cleaner is woken to rank the cold tier: %v", err, len(r.CleanerWake) == 1)
	}
	alone := parttest.New(t, bounded(1))
	alone.Put(parttest.Name("a"), parttest.Data(1, 64))
	if isTight(alone) {
		t.Error("a cold tier is to be ranked where there is none")
	}
	free := parttest.New(t)
	if !hasRoom(free) || isTight(free) || put(free, parttest.Name("a"), nil) != nil {
		t.Error("without a bound there is no room")
	}
}

// There is a bound on namespaces with names.
func TestNamespacesHaveABound(t *testing.T) {
	r := parttest.New(t)
	for i := range maxSpaces {
		r.Mu.Names.AddSpace(fmt.Sprint(i))
	}
	if err := put(r, parttest.Name("a"), parttest.Data(1, 64)); !errors.Is(err, residency.ErrNoRoom) {
		t.Errorf("one namespace more: %v", err)
	}
	if err := put(r, block.Name{Namespace: "0", Key: "a"}, parttest.Data(1, 64)); err != nil {
		t.Error(err)
	}
}
