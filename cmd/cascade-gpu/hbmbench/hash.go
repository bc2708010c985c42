package hbmbench

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/block"
)

// Hash is what it takes to name blocks and to find them, on the CPU.
type Hash struct {
	Threads  int        `json:"threads"`   // that the process may use
	One      kit.Figure `json:"one"`       // SHA-256 of blocks by one thread
	All      kit.Figure `json:"all"`       // by all threads
	Entries  int        `json:"entries"`   // of the table
	InsertNs float64    `json:"insert_ns"` // of an id into a table that grows to that many; median
	LookupNs float64    `json:"lookup_ns"` // of an id that is there
}

// hash measures SHA-256 over the blocks of host memory, and a table of ids.
func (b *bench) hash() (Hash, error) {
	h := Hash{Threads: runtime.GOMAXPROCS(0), Entries: b.o.Entries}
	ids := make([]block.ID, len(b.order))
	rate := func(threads int) (float64, error) {
		took, err := kit.Parallel(threads, len(ids), func(_, i int) error {
			ids[i] = block.Sum(block.Bits128, b.block(b.other.out, i))
			return nil
		})
		return float64(b.o.Bytes) / kit.Mega / took.Seconds(), err
	}
	threads := []int{1, h.Threads}
	rates, err := kit.Turns(b.o.Rounds, len(threads), func(_, way int) (float64, error) { return rate(threads[way]) }, func() {})
	if err != nil {
		return h, err
	}
	h.One, h.All = kit.FigureOf(rates[0]), kit.FigureOf(rates[1])
	var inserts, lookups []float64
	for range b.o.Rounds {
		insert, lookup, err := table(h.Entries)
		if err != nil {
			return h, err
		}
		inserts, lookups = append(inserts, insert), append(lookups, lookup)
	}
	h.InsertNs, h.LookupNs = kit.Median(inserts), kit.Median(lookups)
	return h, nil
}

// table fills a table with n ids and looks each up, in nanoseconds for one.
func table(n int) (insert, lookup float64, err error) {
	ids := make([]block.ID, n)
	for i := range ids {
		ids[i] = block.Sum(block.Bits128, binary.LittleEndian.AppendUint64(nil, uint64(i)))
	}
	files := map[block.ID]uint32{}
	began := time.Now()
	for i, id := range ids {
		files[id] = uint32(i)
	}
	insert = float64(time.Since(began)) / float64(n)
	wrong := 0
	began = time.Now()
	for i, id := range ids {
		if files[id] != uint32(i) {
			wrong++
		}
	}
	lookup = float64(time.Since(began)) / float64(n)
	if wrong > 0 {
		err = fmt.Errorf("bench: %d of %d ids were not found: %w", wrong, n, kit.ErrWrong)
	}
	return insert, lookup, err
}
