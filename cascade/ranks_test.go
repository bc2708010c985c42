package cascade

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/dht/ring"
	"cascadekv/internal/block"
	"cascadekv/lustre"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// job is several ranks over the sim fabric, each with a real arena.
type job struct {
	t     *testing.T
	world *sim.World
	dir   string // the lustre directory of all ranks; "": none
	local string // where ranks have catalogues; "": they have none
	ranks []*jobRank
	again map[int]uint64  // how often ranks began anew
	late  atomic.Int64    // how much later the stores take it to be, nanoseconds
	skew  []time.Duration // how much later each rank takes it to be besides; nil: none do
	links sim.Options
	log   slog.Handler // of the stores; nil: nothing is logged

	below map[fabric.Rank]tiers.Memory // memory below shm

	virtual bool // in a bubble of synctest

	sweepEvery   time.Duration // 0: only Sweep sweeps
	segmentBytes int64         // of the lustre tiers; 0: their default
	patient      bool          // a slow machine is no reason to miss; dead ranks take longer
}

type jobRank struct {
	*Store
	node *dht.Node
	cold *hooked // nil: the job has no directory
}

func newJob(t *testing.T, ranks int, shmBytes int64) *job {
	return (&job{t: t}).open(ranks, shmBytes)
}

func (j *job) open(ranks int, shmBytes int64) *job {
	j.world = sim.New(j.links)
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
	skew := time.Duration(0)
	if j.skew != nil {
		skew = j.skew[rank]
	}
	call, fetch := 200*time.Millisecond, 2*time.Second
	if j.patient {
		call, fetch = time.Second, 30*time.Second
	}
	o := Options{
		Memory: []tiers.Memory{m}, Limits: Limits{FetchDeadline: fetch}, Log: slog.New(cmp.Or(j.log, slog.DiscardHandler)), SweepEvery: cmp.Or(j.sweepEvery, -1),
		Now: func() time.Time { return time.Now().Add(time.Duration(j.late.Load()) + skew) },
	}
	if below := j.below[rank]; below != nil {
		o.Memory = append(o.Memory, below)
	}
	var hook *hooked
	if j.dir != "" {
		catalogued := j.local != ""
		files := lustre.Options{Dir: j.dir, Rank: uint32(rank), OwnOnly: catalogued || j.virtual, Catalogued: catalogued, SegmentBytes: j.segmentBytes}
		if j.virtual {
			files.Uring = segment.Off // its thread waits in the kernel
		}
		cold, err := lustre.Open(files)
		if err == nil && catalogued {
			err = cold.OpenCatalogue(lustre.IndexOptions{Dir: filepath.Join(j.local, fmt.Sprint(rank)), Campaign: j.dir, CacheBytes: 4 << 20, MemTableBytes: 1 << 20})
		}
		if err != nil {
			j.t.Fatal(err)
		}
		hook = &hooked{Files: cold}
		o.Cold = hook
	}
	s, err := Open(j.t.Context(), o)
	if err != nil {
		j.t.Fatal(err)
	}
	node, err := dht.New(dht.Options{
		Fabric: j.world.Join(rank, incarnation), Incarnation: incarnation, Ring: sharedRing, Log: slog.New(slog.DiscardHandler),
		CallDeadline: call, ReadDeadline: 500 * time.Millisecond, NegativeFor: time.Nanosecond, Now: o.Now,
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
	return &jobRank{s, node, hook}
}

var rings sync.Map // by the ranks

// sharedRing makes each ring once: with the race detector it takes a while.
func sharedRing(_ *ring.Ring, ranks []fabric.Rank) (*ring.Ring, error) {
	slices.Sort(ranks)
	if r, ok := rings.Load(fmt.Sprint(ranks)); ok {
		return r.(*ring.Ring), nil
	}
	r, err := ring.New(ranks, 2)
	rings.Store(fmt.Sprint(ranks), r)
	return r, err
}

// die kills a rank and has the others know.
func (j *job) die(rank fabric.Rank) {
	j.world.Kill(rank)
	for i, r := range j.ranks {
		if fabric.Rank(i) != rank {
			r.node.SetMembers(dht.Member{Rank: rank, Incarnation: 1, State: fabric.Gone})
		}
	}
}

func (j *job) members() (all []dht.Member) {
	for i := range j.ranks {
		all = append(all, dht.Member{Rank: fabric.Rank(i), Incarnation: 1 + j.again[i]})
	}
	return all
}

// settle waits until all homes know what all ranks have. What is told can make
// somebody tell something, and is in nobody's list for a moment: so it looks a
// few times.
func (j *job) settle() {
	j.t.Helper()
	quiet := 0
	eventually(j.t, "homes know everything", func() bool {
		quiet++
		for _, r := range j.ranks {
			r.state.Mu.Lock()
			said := r.others.PublishedLocked()
			r.state.Mu.Unlock()
			if !said || !r.node.Settled(j.t.Context()) {
				quiet = 0
			}
		}
		return quiet == 8
	})
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
		t.Fatalf("rank %d: get %q: %v; lost so far: %v", r.node.Self(), key, err, r.Stats().Losses)
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

// TestNoNameCrossesNoNetwork: what asks for, or changes, names that no rank can have, by
// their lengths, is answered without a message; beside others too.
func TestNoNameCrossesNoNetwork(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	a, ctx := j.ranks[0], t.Context()
	j.ranks[1].putKey(t, "k", data(1, 1000))
	j.settle()
	long := strings.Repeat("l", block.MaxKey+1)
	calls := func() (n uint64) {
		for _, r := range j.ranks {
			n += r.node.Stats().Calls
		}
		return n
	}
	before := calls()
	for _, name := range [][2]string{{"ns", ""}, {"ns", long}, {long, "k"}} {
		ns, key := name[0], name[1]
		_, described := a.Stat(ctx, ns, key)
		view, _ := a.Get(ctx, ns, key)
		if a.Delete(ctx, ns, key) || a.Expire(ctx, ns, key, time.Now()) || described || view != nil ||
			a.Contains(ctx, ns, key) || a.Lease(ctx, ns, key, "owner", time.Minute) || a.Probe(ctx, ns, []string{key}).Hits != 0 {
			t.Errorf("a key of %d bytes in a namespace of %d is there", len(key), len(ns))
		}
	}
	if n := a.Clear(ctx, long, false); n != 0 || calls() != before {
		t.Errorf("%d names cleared, %d messages", n, calls()-before)
	}
	if found := a.ContainsBatch(ctx, "ns", [][]byte{nil, []byte("k"), []byte(long)}); !slices.Equal(found, []bool{false, true, false}) {
		t.Errorf("of a name between two that can not be, %v are found", found)
	}
}

func TestExpireReachesTheOwners(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	a, b, c := j.ranks[0], j.ranks[1], j.ranks[2]
	a.putKey(t, "k", data(1, 1000))
	j.settle()
	if !b.Expire(t.Context(), "ns", "k", time.Now().Add(time.Hour)) {
		t.Fatal("the owner's name was not found")
	}
	eventually(t, "another rank knows when the name ends", func() bool {
		info, ok := c.Stat(t.Context(), "ns", "k")
		return ok && !info.Expires.IsZero()
	})
	if !b.Expire(t.Context(), "ns", "k", time.Now().Add(-time.Second)) {
		t.Fatal("the owner's name was not found again")
	}
	for _, r := range j.ranks {
		eventually(t, "the name has ended everywhere", func() bool { return !r.Contains(t.Context(), "ns", "k") })
	}
	if b.Expire(t.Context(), "ns", "nowhere", time.Time{}) {
		t.Error("a name nobody has can end")
	}
}
