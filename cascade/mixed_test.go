package cascade

import (
	"fmt"
	"testing"
	"time"
)

// keysOf puts n blocks of 64 KiB on a rank, and returns their keys.
func keysOf(t *testing.T, r *jobRank, n int) (keys []string) {
	t.Helper()
	for i := range n {
		keys = append(keys, fmt.Sprint("k", i))
		r.putKey(t, keys[i], data(uint64(i), 64<<10))
	}
	return keys
}

// seal has the rank write segments until all it put before is in one that is done.
func (j *job) seal(rank int) {
	for i := range 16 {
		j.drainAll(rank)
		j.ranks[rank].putKey(j.t, fmt.Sprint("more", i), data(uint64(1000+i), 64<<10))
	}
	j.drainAll(rank)
}

// copyTo leaves copies of blocks in a rank's memory.
func (j *job) copyTo(rank int, keys []string) {
	j.t.Helper()
	views, err := j.ranks[rank].GetBatch(j.t.Context(), "ns", keys, Resident)
	if err != nil {
		j.t.Fatal(err)
	}
	for _, v := range views {
		v.Release()
	}
	j.settle()
}

// A block of which one rank has a copy in memory, and another one in its files, is read from the
// files when these are faster.
func TestFilesOfOneRankBeforeMemoryOfAnother(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 128 << 10}
	j.open(3, 16<<20)
	a, c := j.ranks[0], j.ranks[2]
	keys := keysOf(t, c, 8)
	j.seal(2)
	j.copyTo(1, keys)
	c.dropMemory(t)
	j.settle()
	learn(a.state.Cold, 10*time.Microsecond)
	learn(a.state.Remote, 50*time.Millisecond)
	v, err := a.Get(t.Context(), "ns", "k0")
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
}

// A key that is deleted after a probe is not served by what the probe found of it, in the memory
// of others or in files.
func TestDeletedAfterTheProbe(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 128 << 10, local: t.TempDir()}
	j.open(2, 16<<20)
	a := j.ranks[0]
	keys := keysOf(t, a, 40)
	j.seal(0)
	j.copyTo(1, keys)
	a.dropMemory(t)
	a.space.SpillAll(t.Context())
	j.settle()
	a.cold.set(readsTake(30 * time.Millisecond))
	learn(a.state.Cold, 300*time.Millisecond)
	learn(a.state.Remote, time.Millisecond)
	if p := a.Probe(t.Context(), "ns", keys); p.Hits != len(keys) {
		t.Fatalf("%+v", p)
	}
	if !a.Delete(t.Context(), "ns", "k20") {
		t.Fatal("nothing was deleted")
	}
	j.settle()
	for i := range 12 { // each has what was found of later keys fetched
		v, err := a.Get(t.Context(), "ns", keys[i])
		if err == nil {
			v.Release()
		}
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if v, _ := a.Get(t.Context(), "ns", "k20"); v != nil {
			t.Fatalf("a deleted key is served from %s", v.Tier())
		}
	}
}
