package cascade

import (
	"fmt"
	"testing"
	"testing/synctest"

	"cascadekv/dht/directory"
)

// TestManyNamesOfOneBlock: three ranks put the same bytes under more names than a rank entrusts another one
// with at once. All names are found, and counted once, while some and in the end all of them are deleted; also
// after a restart of all, and of all but one.
func TestManyNamesOfOneBlock(t *testing.T) {
	for _, names := range []int{64, 65, 1000} {
		if names != 65 && testing.Short() {
			continue
		}
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d, catalogue %v", names, local), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { manyNames(t, names, local) })
			})
		}
	}
}

func manyNames(t *testing.T, names int, local bool) {
	j := &job{t: t, dir: t.TempDir(), patient: true, virtual: true, segmentBytes: 256 << 10}
	if local {
		j.local = t.TempDir()
	}
	j.open(3, 8<<20)
	p := data(1, 20<<10)
	there := map[string]bool{}
	put := func(rank, from, to int) {
		for i := from; i < to; i++ {
			key := fmt.Sprint("rank", rank, "/", i)
			j.ranks[rank].putKey(t, key, p)
			there[key] = true
		}
	}
	check := func(j *job, when string) {
		t.Helper()
		left := 0
		for key, is := range there {
			if is {
				left++
			}
			for _, r := range j.ranks {
				v, err := r.Get(t.Context(), "ns", key)
				if err == nil {
					v.Release()
				}
				if (err == nil) != is {
					t.Errorf("%s: rank %d has %s: %v, want %v", when, r.node.Self(), key, err == nil, is)
				}
			}
		}
		for _, r := range j.ranks {
			for key, is := range there {
				if !is {
					continue
				}
				info, ok := r.Stat(t.Context(), "ns", key)
				if refs := Refs(t.Context(), r.Store, "ns", key, info); !ok || refs != left {
					t.Errorf("%s: rank %d counts %d names, want %d", when, r.node.Self(), refs, left)
				}
				break
			}
		}
	}
	j.ranks[0].putKey(t, "first", p)
	there["first"] = true
	j.drainAll(0)
	put(1, 0, names)
	j.drainAll(1)
	check(j, "put on two ranks")
	put(2, 0, 10)
	j.drainAll(2)
	put(2, 10, names)
	j.drainAll(2)
	check(j, "put on three ranks")
	check(j.afterRestart(), "put on three ranks, after a restart")
	gone := func(is func(i int) bool) {
		i := 0
		for key := range there {
			if i++; is(i) && there[key] {
				if !j.ranks[i%3].Delete(t.Context(), "ns", key) {
					t.Errorf("%s was not there", key)
				}
				there[key] = false
			}
		}
		j.settle()
		j.drainAll(0, 1, 2)
	}
	gone(func(i int) bool { return i%2 == 0 })
	check(j, "half are deleted")
	for _, r := range j.ranks {
		r.space.MergeAll(t.Context())
	}
	j.settle()
	check(j, "merged")
	check(j.afterRestart(), "half are deleted, after a restart")
	if local {
		all := j.ranks
		j.ranks = all[:2] // who take in what the last one left
		fewer := j.afterRestart()
		j.ranks = all
		check(fewer, "half are deleted, and a rank is no more")
	}
	gone(func(int) bool { return true })
	check(j, "all are deleted")
	for _, r := range j.ranks {
		r.state.Mu.Lock()
		blocks := len(r.state.Mu.Blocks)
		r.state.Mu.Unlock()
		if blocks > 0 {
			t.Errorf("rank %d still has %d blocks of no names", r.node.Self(), blocks)
		}
	}
	for _, r := range j.ranks {
		if copies := r.node.Locate(t.Context(), directory.Contents, []string{directory.ContentKey(idOf(p))})[0]; len(copies) > 0 {
			t.Errorf("rank %d knows of bytes that have no name", r.node.Self())
		}
	}
	check(j.afterRestart(), "all are deleted, after a restart")
}
