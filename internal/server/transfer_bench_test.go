package server

import (
	"fmt"
	"slices"
	"testing"
)

// BenchmarkTransfers moves blocks of 2 MiB between a region and the arena. The
// ceiling is one copy of the same bytes by one core; both directions make one
// copy and one checksum.
func BenchmarkTransfers(b *testing.B) {
	const blocks, size = 32, 2 << 20
	r := newRig(b, 256<<20)
	e := r.engine(blocks * size)
	n := e.attach()
	copy(e.mem, content("ns", "all", len(e.mem)))
	var keys []string
	var pairs []uint64
	for i := range blocks {
		keys = append(keys, fmt.Sprint("k", i))
		pairs = append(pairs, uint64(i*size), size)
	}
	command := func(words ...string) []string {
		return slices.Concat(words[:1], []string{n, "ns", at(pairs...)}, words[1:], []string{"KEYS"}, keys)
	}
	b.Run("memmove", func(b *testing.B) {
		to := mapped(b, memfd(b, len(e.mem)), len(e.mem))
		copy(to, e.mem) // so that its pages are there
		b.SetBytes(int64(len(e.mem)))
		for b.Loop() {
			copy(to, e.mem)
		}
	})
	for name, args := range map[string][]string{
		"store": command("CASCADE.STORE", "REPLACE"),
		"load":  command("CASCADE.LOAD"),
	} {
		e.move(command("CASCADE.STORE")...)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(e.mem)))
			for b.Loop() {
				e.move(args...)
			}
		})
	}
}
