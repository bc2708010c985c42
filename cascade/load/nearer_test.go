package load

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// takes has a level learn that a load takes so long, whatever its size, and then so long a byte.
func takes(m *residency.Level, latency time.Duration, perByte float64) {
	now := time.Duration(0)
	for i := range 200 {
		bytes := int64(1000 << (10 * (i % 2)))
		l := m.Speed.Begin(now, bytes)
		now += latency + time.Duration(perByte*float64(bytes))
		m.Speed.End(now, l, true)
	}
}

// TestTheFastestCopyIsReadFirst: what the cold tier has comes from another rank's memory where that
// is expected to be faster by more than the question takes; with one question for the request,
// and none where nothing is won.
func TestTheFastestCopyIsReadFirst(t *testing.T) {
	for name, c := range map[string]struct {
		cold  time.Duration
		tier  string
		asked int
	}{
		"slow files": {50 * time.Millisecond, residency.RemoteTier, 3},
		"fast files": {100 * time.Microsecond, "host", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, c.cold, 0)
			keys := []string{"a", "b", "c"}
			for i, k := range keys {
				r.PutCold(parttest.Name(k), parttest.Data(uint64(i), size))
				r.peers.Hold(named(k, 5), parttest.Data(uint64(i), size), true, nil)
			}
			for i, f := range r.join(eviction.CopyOnly, keys...) {
				v := r.Await(t.Context(), f)
				if c.asked > 0 && v != nil && v.Tier() != c.tier {
					t.Errorf("block %d is served from %s", i, v.Tier())
				}
				r.wants(v, parttest.Data(uint64(i), size), v.Tier())
			}
			if got := r.peers.Located(); len(got) != c.asked {
				t.Errorf("others were asked for %v", got)
			}
			if n, reads := r.peers.Batches(), r.files.reads(); c.asked > 0 && (!slices.Equal(n, []int{3}) || len(reads) > 0) || c.asked == 0 && (len(n) > 0 || !slices.Equal(reads, []int{3})) {
				t.Errorf("read %v from another rank, %v from files", n, reads)
			}
			for _, k := range keys {
				if b := r.Block(k); !b.In(r.Last().Index) || !b.Cold {
					t.Errorf("%s is in memory: %v, in the cold tier: %v", k, b.In(r.Last().Index), b.Cold)
				}
			}
			r.idle()
		})
	}
}

// TestAColdCopyIsLeft: what another rank turns out not to have, or has other bytes of, comes from
// the cold tier, though that is slower.
func TestAColdCopyIsLeft(t *testing.T) {
	p, other := parttest.Data(1, size), parttest.Data(2, size)
	for name, has := range map[string]func(*rank){
		"nothing":              func(*rank) {},
		"a copy that has gone": func(r *rank) { r.peers.Gone(named("a", 5), p, nil) },
		"damaged bytes":        func(r *rank) { r.peers.Damage(r.peers.Hold(named("a", 5), p, true, nil).Info.ID) },
		"another block":        func(r *rank) { r.peers.Hold(named("a", 9), other, true, nil) },
		"a segment":            func(r *rank) { r.peers.Hold(named("a", 5), p, false, &directory.Segment{Path: "a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, 50*time.Millisecond, 0)
			r.PutCold(parttest.Name("a"), p)
			has(r)
			v := r.Await(t.Context(), r.join(eviction.CopyOnly, "a")[0])
			if v == nil {
				t.Fatal("a miss")
			}
			r.wants(v, p, v.Tier())
			if n := r.files.reads(); !slices.Equal(n, []int{1}) {
				t.Errorf("read %v from files", n)
			}
			if b := r.Block("a"); b == nil || !b.Cold {
				t.Error("it is not in the cold tier any more")
			}
			r.idle()
		})
	}
}

// TestAnotherRankIsLeft: where the cold tier takes part of a chain that others have in memory too,
// what it has lost comes from them.
func TestAnotherRankIsLeft(t *testing.T) {
	for name, err := range map[string]error{"damaged": tiers.ErrCorrupt, "gone": tiers.ErrNotFound, "unavailable": tiers.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, time.Millisecond, 100)
			takes(r.Remote, 200*time.Microsecond, 60)
			keys := []string{"long", "mine", "last"} // the last one would make the other rank slower than the tier
			for i, n := range []int{400_000, size, 400_000} {
				p := parttest.Data(uint64(i), n)
				b := r.PutCold(parttest.Name(keys[i]), p)
				if keys[i] != "mine" {
					r.peers.Hold(named(keys[i], 5), p, true, nil)
				}
				if keys[i] == "last" {
					r.files.fail[b.Info.ID] = err
				}
			}
			all := r.join(eviction.CopyOnly, keys...)
			for i, n := range []int{400_000, size, 400_000} {
				v := r.Await(t.Context(), all[i])
				if v == nil {
					t.Fatalf("%s is a miss", keys[i])
				}
				r.wants(v, parttest.Data(uint64(i), n), v.Tier())
			}
			if n := r.files.reads(); !slices.Equal(n, []int{2}) {
				t.Errorf("read %v from files", n)
			}
			if b := r.Block("last"); b == nil || b.Cold != (err == tiers.ErrUnavailable) {
				t.Errorf("last is %+v", b)
			}
			r.idle()
		})
	}
}

// TestASegmentBeforeMemory: what another rank has in memory comes from its segment where that is
// faster, and from memory if it is not there.
func TestASegmentBeforeMemory(t *testing.T) {
	for _, there := range []bool{true, false} {
		t.Run(fmt.Sprint(there), func(t *testing.T) {
			r := newRank(t)
			takes(r.Cold, 100*time.Microsecond, 0)
			takes(r.Remote, 50*time.Millisecond, 0)
			p := parttest.Data(1, size)
			r.peers.Hold(named("a", 5), p, true, &directory.Segment{Path: "a"})
			want := residency.RemoteTier
			if there {
				r.files.segments["a"], want = p, r.ColdName()
			}
			r.wants(r.get(t.Context(), false, "a")[0], p, want)
			if n := len(r.peers.Batches()); (n == 0) != there {
				t.Errorf("%d reads from memory", n)
			}
			r.idle()
		})
	}
}

// TestOthersAreAskedSeldom: where they have nothing, most requests ask nobody.
func TestOthersAreAskedSeldom(t *testing.T) {
	r := newRank(t)
	takes(r.Cold, 10*time.Millisecond, 0)
	for i := range 50 {
		key := fmt.Sprint(i)
		r.PutCold(parttest.Name(key), parttest.Data(uint64(i), size))
		v := r.Await(t.Context(), r.join(eviction.CopyOnly, key)[0])
		r.wants(v, parttest.Data(uint64(i), size), v.Tier())
		takes(r.Cold, 10*time.Millisecond, 0)
	}
	if n := len(r.peers.Located()); n == 0 || n > 5 {
		t.Errorf("others were asked %d times of 50", n)
	}
	r.idle()
}

// locating calls fn whenever other ranks were asked where something is.
type locating struct {
	others.Peers
	fn func()
}

func (l locating) Locate(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := l.Peers.Locate(ctx, ns, keys)
	l.fn()
	return found
}

// A name that is deleted while others are asked for a nearer copy does not come back.
func TestDeletedWhileOthersAreAsked(t *testing.T) {
	r := newRank(t)
	takes(r.Cold, 50*time.Millisecond, 0)
	p := parttest.Data(1, size)
	r.known.Hold(named("a", 5), p)
	r.files.segments["a"] = p
	r.peers.Hold(named("a", 5), p, true, nil)
	r.Loader.others.Peers = locating{r.peers, func() {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.Loader.others.InvalidateLocked(residency.NameID{NS: "ns", Key: "a"}, 100)
	}}
	for _, v := range r.get(t.Context(), true, "a") {
		if v != nil {
			t.Errorf("it is served from %s", v.Tier())
			v.Release()
		}
	}
	r.Workers.Wait()
	if r.Block("a") != nil {
		t.Error("it is here again")
	}
}
