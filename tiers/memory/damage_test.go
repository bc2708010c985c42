package memory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// TestDamagedArena flips bits in every part of an arena. What is recovered has
// the bytes and names that were put, and the tier goes on in use.
func TestDamagedArena(t *testing.T) {
	const size = MinBytes
	path := filepath.Join(t.TempDir(), "a.arena")
	items, image := filledArena(t, path, size)
	g := geometryOf(size)
	var cells []int64
	arena.WalkRecords(image[g.tags:g.data], g.capacity, func(off, cell int64) { cells = append(cells, g.data+off) })

	for name, place := range map[string]func(rng *rand.Rand) int64{
		"superblock": func(rng *rand.Rand) int64 { return rng.Int64N(64) },
		"tags":       func(rng *rand.Rand) int64 { return g.tags + rng.Int64N(g.capacity/arena.Page) },
		"records":    func(rng *rand.Rand) int64 { return cells[rng.IntN(len(cells))] + rng.Int64N(64) },
		"payload":    func(rng *rand.Rand) int64 { return g.data + rng.Int64N(g.capacity) },
	} {
		t.Run(name, func(t *testing.T) {
			recovered := 0
			for seed := range uint64(60) {
				rng := rand.New(rand.NewPCG(seed, 3))
				damaged := append([]byte(nil), image...)
				for range 1 + rng.IntN(40) {
					damaged[place(rng)] ^= 1 << rng.IntN(8)
				}
				if err := os.WriteFile(path, damaged, 0o600); err != nil {
					t.Fatal(err)
				}
				recovered += checkDamaged(t, path, items)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if recovered == 0 && name != "superblock" {
				t.Error("no block survived any damage")
			}
			t.Logf("%d of %d blocks recovered", recovered, 60*len(items))
		})
	}
}

// filledArena returns what was put and the file's bytes, with holes where
// blocks were evicted.
func filledArena(t *testing.T, path string, size int64) (map[block.ID]tiers.Item, []byte) {
	t.Helper()
	tr := openAll(t, path, size)
	items := map[block.ID]tiers.Item{}
	for i := range 60 {
		it := testItem(byte(i), []int{100, 3000, 20_000, 60_000}[i%4]+i)
		it.Names[0].Key = fmt.Sprint("key", i)
		if err := tr.Put(t.Context(), it); err != nil {
			t.Fatal(err)
		}
		items[it.Info.ID] = it
		if i%5 == 4 {
			if err := tr.Evict(it.Info.ID); err != nil {
				t.Fatal(err)
			}
			delete(items, it.Info.ID)
		}
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return items, image
}

// checkDamaged opens the arena, compares what is there and puts it to use. It
// returns how many blocks were recovered.
func checkDamaged(t *testing.T, path string, items map[block.ID]tiers.Item) (recovered int) {
	t.Helper()
	tr, err := Open(Options{Name: "test", Path: path, Bytes: MinBytes})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer tr.Close()
	if tr.Opened().Path != path {
		t.Errorf("the damaged file is left alone: %+v", tr.Opened())
	}
	if err := tr.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	err = tr.Recover(func(e tiers.Entry) error {
		want, ok := items[e.Info.ID]
		if !ok || e.Info != want.Info {
			return fmt.Errorf("recovered %+v, which nobody put", e.Info)
		}
		for _, n := range e.Names {
			if !sameName(n, want.Names[0]) {
				return fmt.Errorf("recovered %+v, want %+v", n, want.Names[0])
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	compare := func() (n int) {
		for id, want := range items {
			p, err := tr.Pin(id)
			if errors.Is(err, tiers.ErrNotFound) {
				continue
			}
			if err != nil {
				t.Error(err)
				continue
			}
			if string(p.Bytes()) != string(want.Data) {
				t.Errorf("block %v has wrong bytes", id)
			}
			p.Release()
			n++
		}
		return n
	}
	recovered = compare()
	for i := range 200 { // what comes now must not overlap what is there
		if err := tr.Put(t.Context(), testItem(byte(200+i%50), 9000+i)); errors.Is(err, tiers.ErrFull) {
			break
		} else if err != nil {
			t.Error(err)
		}
	}
	if again := compare(); again != recovered {
		t.Errorf("%d of %d recovered blocks are left after puts", again, recovered)
	}
	return recovered
}
