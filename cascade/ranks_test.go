package cascade

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// job is several ranks over the sim fabric, each with a real arena.
type job struct {
	t     *testing.T
	world *sim.World
	ranks []*jobRank
}

type jobRank struct {
	*Store
	node *dht.Node
}

func newJob(t *testing.T, ranks int, shmBytes int64) *job {
	j := &job{t: t, world: sim.New(sim.Options{Seed: 1})}
	for i := range ranks {
		j.ranks = append(j.ranks, j.start(fabric.Rank(i), 1, shmBytes))
	}
	for _, r := range j.ranks {
		r.node.SetMembers(j.members()...)
	}
	return j
}

func (j *job) start(rank fabric.Rank, incarnation uint64, shmBytes int64) *jobRank {
	j.t.Helper()
	m, err := shm.Open(filepath.Join(j.t.TempDir(), fmt.Sprintf("rank%d.arena", rank)), shmBytes)
	if err != nil {
		j.t.Fatal(err)
	}
	s, err := Open(j.t.Context(), Options{Memory: []tiers.Memory{m}, Limits: Limits{FetchDeadline: 2 * time.Second}})
	if err != nil {
		j.t.Fatal(err)
	}
	node, err := dht.New(dht.Options{
		Fabric: j.world.Join(rank, incarnation), Incarnation: incarnation,
		CallDeadline: 200 * time.Millisecond, ReadDeadline: 500 * time.Millisecond, NegativeFor: time.Nanosecond,
	}, Local{s})
	if err != nil {
		j.t.Fatal(err)
	}
	s.Join(node)
	j.t.Cleanup(func() {
		if err := node.Close(); err != nil {
			j.t.Error(err)
		}
		if err := s.Close(context.Background()); err != nil {
			j.t.Error(err)
		}
	})
	return &jobRank{s, node}
}

func (j *job) members() (all []dht.Member) {
	for i := range j.ranks {
		all = append(all, dht.Member{Rank: fabric.Rank(i), Incarnation: 1})
	}
	return all
}

// settle waits until all homes know what all ranks have.
func (j *job) settle() {
	j.t.Helper()
	for _, r := range j.ranks {
		eventually(j.t, "homes know everything", func() bool {
			r.mu.Lock()
			said := len(r.unsaid) == 0
			r.mu.Unlock()
			return said && r.node.Settled(j.t.Context().Done())
		})
	}
}

func (r *jobRank) putKey(t *testing.T, key string, p []byte) {
	t.Helper()
	if _, err := r.Put(t.Context(), ns(key), p, nil); err != nil {
		t.Fatal(err)
	}
}

// wantAt checks that a rank serves key with these bytes, and returns from where.
func (r *jobRank) wantAt(t *testing.T, key string, p []byte) string {
	t.Helper()
	v, err := r.Get(t.Context(), "ns", key)
	if err != nil {
		t.Fatalf("rank %d: get %q: %v", r.node.Self(), key, err)
	}
	defer v.Release()
	if string(v.Bytes()) != string(p) {
		t.Fatalf("rank %d: %q has other bytes", r.node.Self(), key)
	}
	return v.Tier()
}

func TestEveryRankServesWhatOneStored(t *testing.T) {
	j := newJob(t, 4, 16<<20)
	for i := range 100 {
		j.ranks[i%4].putKey(t, fmt.Sprint(i), data(uint64(i), 1000+i))
	}
	j.settle()
	for i := range 100 {
		for _, r := range j.ranks {
			tier := r.wantAt(t, fmt.Sprint(i), data(uint64(i), 1000+i))
			if own := int(r.node.Self()) == i%4; own != (tier == "shm") {
				t.Errorf("rank %d serves block %d from %s", r.node.Self(), i, tier)
			}
		}
	}
	for _, r := range j.ranks {
		if _, err := r.Get(t.Context(), "ns", "nowhere"); err == nil {
			t.Error("a key nobody stored is a hit")
		}
	}
}
