package cascade

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/residency"
	"cascadekv/cascade/sharedindex"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
)

// viewer is a client that reads blocks in place by holds of its own.
func (r *rig) viewer() (*shmindex.Viewer, *Holds) {
	r.t.Helper()
	holds, err := r.index.Holds()
	if err != nil {
		r.t.Fatal(err)
	}
	return &shmindex.Viewer{Index: r.reader(), Holds: mappedHolds(r.t, holds), Arena: r.mapArena()}, holds
}

// mappedHolds maps a client's holds as the client does.
func mappedHolds(t testing.TB, h *Holds) *shmindex.Holds {
	t.Helper()
	fd, _ := h.File()
	again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	table, err := shmindex.OpenHolds(again, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

func (r *rig) mapArena() []byte {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.dir, "a.arena"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(r.shm), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

// usedNow is how much of the arena is handed out.
func (r *rig) usedNow() int64 { return r.state.Shared().Memory.Usage().Used }

// TestHoldsKeepBlocks: a block that a client holds keeps its bytes when its name
// is deleted or has another value and everything else is overwritten, and is room
// again when it is let go, or its client has gone.
func TestHoldsKeepBlocks(t *testing.T) {
	r := newRig(t, 8<<20, false)
	v, holds := r.viewer()
	other, gone := r.viewer()
	r.put(ns("first"), data(1, 5000)) // room for records is set aside
	r.Clear(t.Context(), "ns", false)
	before := r.usedNow()
	views := map[string]shmindex.View{}
	for i, size := range []int{100, 3000, 40_000, 300_000} {
		for _, fate := range []string{"deleted", "replaced", "kept by another", "stays"} {
			key := fmt.Sprint(fate, i)
			p := data(uint64(len(views)), size)
			r.put(ns(key), p)
			by := v
			if fate == "kept by another" {
				by = other
			}
			view, ok := by.View(shmindex.FingerprintOf("ns", key))
			if !ok || block.CRC(view.Bytes) != block.CRC(p) {
				t.Fatalf("%s: view %v of other bytes", key, ok)
			}
			views[key] = view
			switch fate {
			case "replaced":
				r.put(ns(key), []byte("something else"))
			case "deleted", "kept by another":
				r.Delete(t.Context(), "ns", key)
			}
		}
	}
	if n, size := r.index.Held(); n != int64(len(views)) || size == 0 {
		t.Errorf("%d blocks, %d bytes are held, want %d", n, size, len(views))
	}
	overwrite := func() {
		for i := range 200 {
			_ = r.stage(ns(fmt.Sprint("fill", i)), data(uint64(1000+i), 100+i*1500))
		}
	}
	overwrite()
	r.Sweep()
	for key, view := range views {
		if block.CRC(view.Bytes) != view.CRC {
			t.Errorf("%s: %d bytes have changed while they were held", key, view.Size)
		}
	}
	for _, view := range views {
		if !v.Holds.Has(int64(view.Offset)) {
			continue // held by the other
		}
		v.LetGo(view)
	}
	gone.Close()
	if n, size := r.index.Held(); n != 0 || size != 0 {
		t.Errorf("%d blocks, %d bytes are held at the end", n, size)
	}
	r.put(ns("late"), data(1, 3000))
	if _, ok := other.View(shmindex.FingerprintOf("ns", "late")); ok {
		t.Error("a client holds something that nobody looks after any more")
	}
	r.Clear(t.Context(), "ns", false)
	eventually(t, "all room is nobody's again", func() bool {
		r.Sweep()
		return r.usedNow() <= before
	})
	holds.Close()
}

// TestHoldsWhileStorming: whatever is stored, replaced, deleted, evicted and moved
// meanwhile, a view has the bytes that its entry tells of until it is let go.
func TestHoldsWhileStorming(t *testing.T) {
	r := newRig(t, 12<<20, false)
	const names, clients = 150, 3
	var values [][]byte
	for i := range 120 {
		values = append(values, data(uint64(i), []int{200, 5000, 30_000, 60_000, 100_000, 900_000}[i%6]))
	}
	var stop atomic.Bool
	var storm, readers sync.WaitGroup
	for g := range 2 {
		storm.Go(func() {
			rng := rand.New(rand.NewPCG(41, uint64(g)))
			for !stop.Load() {
				key := fmt.Sprint(rng.IntN(names))
				if rng.IntN(4) == 0 {
					r.Delete(context.Background(), "ns", key)
				} else {
					_ = r.stage(ns(key), values[rng.IntN(len(values))])
				}
				if rng.IntN(50) == 0 {
					r.Sweep()
				}
			}
		})
	}
	moved := func() bool { return r.state.Shared().Memory.Moves() > 3 }
	deadline := time.Now().Add(time.Minute)
	var seen [clients]int
	for c := range clients {
		v, _ := r.viewer()
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(42, uint64(c)))
			v.Between = func() {
				if rng.IntN(20) == 0 {
					time.Sleep(time.Duration(rng.IntN(400)) * time.Microsecond)
				}
			}
			var held []shmindex.View
			for i := 0; seen[c] < 2500 || !moved(); i++ {
				if time.Now().After(deadline) {
					t.Errorf("client %d: %d views, blocks were moved: %v", c, seen[c], moved())
					break
				}
				if view, ok := v.View(shmindex.FingerprintOf("ns", fmt.Sprint(rng.IntN(names)))); ok {
					held = append(held, view)
					seen[c]++
				}
				if len(held) > 12 || i%5 == 0 && len(held) > 0 {
					k := rng.IntN(len(held))
					if view := held[k]; block.CRC(view.Bytes) != view.CRC {
						t.Errorf("%d bytes at %d are others", view.Size, view.Offset)
						return
					}
					v.LetGo(held[k])
					held = append(held[:k], held[k+1:]...)
				}
			}
			for _, view := range held {
				v.LetGo(view)
			}
		})
	}
	readers.Wait()
	stop.Store(true)
	storm.Wait()
	if n, _ := r.index.Held(); n != 0 {
		t.Errorf("%d blocks are held at the end", n)
	}
	checkInvariants(t, r.Store)
}

// TestAllowanceOfHolds: all clients together may hold an eighth of the arena.
func TestAllowanceOfHolds(t *testing.T) {
	r := newRig(t, 64<<20, false)
	capacity := r.state.Shared().Memory.Usage().Capacity
	var sum int64
	var all []*Holds
	for range 2 * sharedindex.HoldsShare / sharedindex.AllHoldsShare {
		h, err := r.index.Holds()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
		sum += h.Table.Allowance()
	}
	if sum > capacity/sharedindex.AllHoldsShare || sum < capacity/sharedindex.AllHoldsShare-capacity/sharedindex.HoldsShare {
		t.Errorf("clients may hold %d bytes of %d", sum, capacity)
	}
	for _, h := range all {
		h.Close()
	}
	again, err := r.index.Holds()
	if err != nil || again.Table.Allowance() != capacity/sharedindex.HoldsShare {
		t.Errorf("an allowance of %d when nobody else is there (%v)", again.Table.Allowance(), err)
	}
	again.Close()
}

// TestNoHoldsWithoutAFile: memory that is in no file can not be read in place.
func TestNoHoldsWithoutAFile(t *testing.T) {
	r := newTwoTiers(t, 8<<20, 8<<20)
	index := sharedindex.New(&residency.State{Ladder: residency.Ladder{Mem: r.state.Mem[:1]}}, nil) // the one without a file
	if _, err := index.Holds(); !errors.Is(err, ErrNoArena) {
		t.Errorf("holds: %v", err)
	}
	if claims := index.EndHolds(); claims != nil {
		t.Errorf("claims %v", claims)
	}
}
