package server

import (
	"slices"
	"testing"
)

// A key that stands in a command more than once is stored each time it stands
// there, chained or not: its chain then goes around that key, not through it.
func TestStoreOfOneKeyTwice(t *testing.T) {
	for name, c := range map[string]struct {
		keys    []string
		options []string
		parents map[string]string
	}{
		"side by side": {keys: []string{"a", "a"}, parents: map[string]string{"a": "head"}},
		"three times":  {keys: []string{"a", "a", "a", "b"}, parents: map[string]string{"a": "head", "b": "a"}},
		"with a gap":   {keys: []string{"a", "b", "a", "c"}, parents: map[string]string{"a": "head", "b": "a", "c": "a"}},
		"replaced":     {keys: []string{"a", "b", "a"}, options: []string{"REPLACE"}, parents: map[string]string{"a": "head", "b": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 64<<20)
			e := r.engine(1 << 20)
			copy(e.mem, randomBytes(1, len(e.mem)))
			n := e.attach()
			var extents []uint64
			for i, key := range c.keys {
				at := uint64(1000 * i)
				if first := slices.Index(c.keys, key); first < i {
					at = uint64(1000 * first)
				}
				extents = append(extents, at, 1000)
			}
			want := "11111"[:len(c.keys)]
			for round := range 2 {
				args := slices.Concat([]string{"CASCADE.STORE", n, "ns", at(extents...), "CHAIN", "PARENT", "head"}, c.options, []string{"KEYS"}, c.keys)
				if got := e.move(args...); got != want {
					t.Fatalf("round %d: %s, want %s", round, got, want)
				}
				for key, parent := range c.parents {
					if info, ok := r.store.Stat(t.Context(), "ns", key); !ok || info.Parent != parent {
						t.Errorf("round %d: %s: %v, parent %q, want %q", round, key, ok, info.Parent, parent)
					}
				}
			}
		})
	}
}
