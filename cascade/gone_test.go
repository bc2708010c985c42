package cascade

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/lustre"
)

// TestRemovedFilesAreNoticed: the files of the cold tier are removed under a store.
// What is in memory is written again, at the next look and by a drain; what is
// nowhere any more is a miss.
func TestRemovedFilesAreNoticed(t *testing.T) {
	for name, look := range map[string]func(*rig) int{
		"look": func(r *rig) int {
			r.write.RestoreGone(t.Context())
			return r.cold.Usage().Blocks
		},
		"drain": func(r *rig) int {
			n, err := r.Drain(t.Context())
			if err != nil {
				t.Error(err)
			}
			return n
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "kv")
			r := newRig(t, 8<<20, false, func(o *Options) {
				tier, err := lustre.Open(lustre.Options{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				o.Cold = tier
			})
			r.cold = r.Store.state.Cold.Files
			const n, size = 40, 500_000 // more than memory holds
			for i := range n {
				r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
			}
			if _, err := r.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := r.cold.Usage().Blocks; got != n {
				t.Fatalf("%d blocks in the cold tier, want %d", got, n)
			}
			inMemory := 0
			for i := range n {
				if info, ok := r.Stat(t.Context(), "ns", fmt.Sprint(i)); ok && info.Tiers[0] == "shm" {
					inMemory++
				}
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if got := look(r); got != inMemory || inMemory == 0 || inMemory == n {
				t.Errorf("%d blocks are there again, want the %d of %d in memory", got, inMemory, n)
			}
			found := 0
			for i := range n {
				if _, ok := r.Stat(t.Context(), "ns", fmt.Sprint(i)); ok {
					r.want(fmt.Sprint(i), data(uint64(i), size))
					found++
				} else {
					r.want(fmt.Sprint(i), nil)
				}
			}
			if st := r.Stats(); found != inMemory || st.DirtyBlocks != 0 || r.cold.Usage().Blocks != inMemory {
				t.Errorf("%d blocks are found, %d dirty, %d in the cold tier; want %d", found, st.DirtyBlocks, r.cold.Usage().Blocks, inMemory)
			}
			if files, _ := filepath.Glob(filepath.Join(dir, "*", "agg_*.bin")); len(files) == 0 {
				t.Error("there are no files")
			}
		})
	}
}
