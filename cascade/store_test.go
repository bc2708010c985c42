package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
	"cascadekv/tiers/shm"
)

// rig is a store over real tiers: shm in a directory, and a host tier that
// plays the cold one, since it keeps whatever it is given.
type rig struct {
	t     testing.TB
	dir   string
	shm   int64
	cold  tiers.Files
	opt   Options
	now   time.Time
	nowMu sync.Mutex
	*Store
}

func newRig(t testing.TB, shmBytes int64, cold bool, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), shm: shmBytes, now: time.Unix(1_800_000_000, 0)}
	if cold {
		c, err := host.Open(256 << 20)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // after the stores that use it
		r.cold = keepOpen{tiers.Plain{Tier: c}}
	}
	r.opt = Options{SweepEvery: -1, Now: r.clock, Log: slog.New(slog.DiscardHandler), Limits: Limits{RoomDeadline: patient}}
	for _, f := range change {
		f(&r.opt)
	}
	r.open()
	t.Cleanup(func() { r.Store.Close(context.Background()) })
	return r
}

// keepOpen lets a cold tier outlive the store in tests of restarts.
type keepOpen struct{ tiers.Files }

func (keepOpen) Close() error { return nil }

func (r *rig) clock() time.Time {
	r.nowMu.Lock()
	defer r.nowMu.Unlock()
	return r.now
}

func (r *rig) advance(d time.Duration) {
	r.nowMu.Lock()
	r.now = r.now.Add(d)
	r.nowMu.Unlock()
	r.Sweep()
}

func (r *rig) open() {
	r.t.Helper()
	m, err := shm.Open(filepath.Join(r.dir, "a.arena"), r.shm)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := m.WaitReady(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	o := r.opt
	o.Memory = nil
	at := 0
	for at < len(r.opt.Memory) && !isDisk(r.opt.Memory[at]) {
		at++
	}
	o.Memory = slices.Insert(slices.Clone(r.opt.Memory), at, tiers.Memory(m))
	if r.cold != nil {
		o.Cold = r.cold
	}
	r.Store, err = Open(context.Background(), o)
	if err != nil {
		r.t.Fatal(err)
	}
}

// crash starts again on a copy of the arena as it is now.
func (r *rig) crash() {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, "a.arena"))
	if err != nil {
		r.t.Fatal(err)
	}
	old := r.Store
	r.t.Cleanup(func() { old.Close(context.Background()) })
	r.dir = r.t.TempDir()
	if err := os.WriteFile(filepath.Join(r.dir, "a.arena"), b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.open()
}

func data(seed uint64, size int) []byte { return noise.Bytes(seed, size) }

func (r *rig) put(e Entry, p []byte) PutResult {
	r.t.Helper()
	res, err := r.Put(context.Background(), e, p, nil)
	if err != nil {
		r.t.Fatalf("Put %q: %v", e.Key, err)
	}
	return res
}

func (r *rig) stage(e Entry, p []byte) error {
	st, err := r.Stage(context.Background(), int64(len(p)))
	if err != nil {
		return err
	}
	copy(st.Bytes(), p)
	st.Filled(len(p) / 2)
	st.Filled(len(p) - len(p)/2)
	return st.Commit(context.Background(), e)
}

// want checks that key holds p; nil means a miss.
func (r *rig) want(key string, p []byte) (tier string) {
	r.t.Helper()
	v, err := r.Get(context.Background(), "ns", key)
	if p == nil {
		if !errors.Is(err, ErrMiss) {
			r.t.Fatalf("Get %q: error %v, want a miss", key, err)
		}
		return ""
	}
	if err != nil {
		r.t.Fatalf("Get %q: %v", key, err)
	}
	defer v.Release()
	if !bytes.Equal(v.Bytes(), p) {
		r.t.Fatalf("Get %q: wrong bytes from %s", key, v.Tier())
	}
	return v.Tier()
}

func ns(key string) Entry { return Entry{Namespace: "ns", Key: key} }

// TestPutGetDeduplicates does so with blocks that are hashed first and with
// those that are hashed while they are copied.
func TestPutGetDeduplicates(t *testing.T) {
	for _, size := range []int{5000, 1 << 20, 9 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { putGetDeduplicates(t, size) })
	}
}

func putGetDeduplicates(t *testing.T, size int) {
	r := newRig(t, 16<<20, false)
	k, v := data(1, 1000), data(2, size)
	res, err := r.Put(context.Background(), ns("a"), k, v)
	if err != nil || res.Duplicate {
		t.Fatal(res, err)
	}
	if want := block.Sum(block.Bits128, k, v); res.ID != want {
		t.Errorf("id %v, want %v", res.ID, want)
	}
	whole := append(bytes.Clone(k), v...)
	if res := r.put(ns("b"), whole); !res.Duplicate {
		t.Error("equal bytes were stored twice")
	}
	r.want("a", whole)
	r.want("b", whole)
	if used := r.Stats().Tiers[0].Usage.Payload; used != int64(len(whole)) {
		t.Errorf("the tier holds %d bytes after a duplicate of %d", used, len(whole))
	}
	st := r.Stats()
	if st.BytesStored != int64(size+1000) || st.BytesReferenced != int64(2*size+2000) || st.Blocks != 1 || st.Names != 2 || st.Duplicates != 1 {
		t.Errorf("%+v", st)
	}
	if !r.Delete(context.Background(), "ns", "a") || r.Delete(context.Background(), "ns", "a") {
		t.Error("Delete does not say whether the name was there")
	}
	r.want("a", nil)
	r.want("b", whole)
	r.Delete(context.Background(), "ns", "b")
	if st := r.Stats(); st.BytesStored != 0 || st.Blocks != 0 || st.Names != 0 || st.Tiers[0].Usage.Blocks != 0 {
		t.Errorf("after the last name is gone: %+v", st)
	}
}

func TestStagedPutIsCompletedAndMerged(t *testing.T) {
	r := newRig(t, 16<<20, false)
	p := data(3, 100_000)
	first := r.put(ns("first"), p)
	for i := range 3 {
		if err := r.stage(ns(fmt.Sprint("s", i)), p); err != nil {
			t.Fatal(err)
		}
	}
	other := data(4, 70_000)
	if err := r.stage(ns("other"), other); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ids are completed", func() bool { return r.Stats().PendingIDs == 0 })
	for i := range 3 {
		info, _ := r.Stat(context.Background(), "ns", fmt.Sprint("s", i))
		if info.ID != first.ID || info.Refs != 4 {
			t.Errorf("%+v, want block %v with 4 names", info, first.ID)
		}
		r.want(fmt.Sprint("s", i), p)
	}
	if info, _ := r.Stat(context.Background(), "ns", "other"); info.ID != block.Sum(block.Bits128, other) {
		t.Errorf("completed id is %v", info.ID)
	}
	eventually(t, "duplicates give their memory back", func() bool { return r.Stats().Tiers[0].Usage.Blocks == 2 })
}

// limit changes the limits of a store.
func (s *Store) limit(change func(*Limits)) {
	l := *s.state.Limits.Load()
	change(&l)
	s.SetLimits(l)
}

// eventually waits for a background worker; its patience is a safety net, not
// a measurement.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

func TestOverwriteReplacesAndConditionsHold(t *testing.T) {
	r := newRig(t, 16<<20, false)
	a, b := data(5, 3000), data(6, 4000)
	cond := func(key string, c Condition) Entry { e := ns(key); e.When = c; return e }
	if _, err := r.Put(context.Background(), cond("k", IfPresent), a, nil); !errors.Is(err, ErrCondition) {
		t.Errorf("IfPresent on an absent name: %v", err)
	}
	if err := r.stage(cond("k", IfAbsent), a); err != nil {
		t.Error(err)
	}
	if err := r.stage(cond("k", IfAbsent), b); !errors.Is(err, ErrCondition) {
		t.Errorf("IfAbsent on a present name: %v", err)
	}
	r.want("k", a)
	if err := r.stage(cond("k", IfPresent), b); err != nil {
		t.Error(err)
	}
	r.want("k", b)
	r.put(ns("k"), b)
	r.want("k", b)
	if st := r.Stats(); st.Names != 1 {
		t.Errorf("%+v", st)
	}
}

func TestExpiry(t *testing.T) {
	r := newRig(t, 16<<20, false)
	p := data(7, 1000)
	e := ns("k")
	e.Expires = r.clock().Add(10 * time.Second)
	r.put(e, p)
	keep := ns("k")
	keep.KeepTTL = true
	r.put(keep, p)
	if info, _ := r.Stat(context.Background(), "ns", "k"); !info.Expires.Equal(e.Expires) {
		t.Errorf("KeepTTL: expires %v, want %v", info.Expires, e.Expires)
	}
	r.Expire(context.Background(), "ns", "k", e.Expires.Add(time.Second))
	r.advance(10 * time.Second)
	r.want("k", p)
	r.advance(time.Second)
	r.want("k", nil)
	if st := r.Stats(); st.Blocks != 0 || r.Len("ns") != 0 {
		t.Errorf("expired block stays: %+v", st)
	}
}

func TestBoundNameHidesWithoutItsPartner(t *testing.T) {
	r := newRig(t, 16<<20, false)
	meta := Entry{Namespace: "ns", Key: "kmetadata", Parent: "kkv_bytes", Bound: true}
	r.put(meta, data(8, 28))
	if r.Contains(context.Background(), "ns", "kmetadata") {
		t.Error("metadata is visible before its bytes")
	}
	r.put(ns("kkv_bytes"), data(9, 90_000))
	r.want("kmetadata", data(8, 28))
	r.Delete(context.Background(), "ns", "kkv_bytes")
	r.want("kmetadata", nil)
}

func TestVictimsFallToTheColdTierAndComeBack(t *testing.T) {
	r := newRig(t, 8<<20, true)
	const n, size = 60, 300_000
	for i := range n {
		if err := r.stage(ns(fmt.Sprint(i)), data(uint64(i), size)); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	tiersSeen := map[string]int{}
	for i := range n {
		tiersSeen[r.want(fmt.Sprint(i), data(uint64(i), size))]++
	}
	if tiersSeen["host"] == 0 {
		t.Errorf("nothing came from the cold tier: %v", tiersSeen)
	}
	st := r.Stats()
	if st.Lost != 0 || st.Hits != n || st.Tiers[1].Hits == 0 || st.Tiers[0].Promoted == 0 || st.Tiers[0].Evicted == 0 {
		t.Errorf("%+v", st)
	}
	if wrote, err := r.Drain(context.Background()); err != nil || r.Stats().DirtyBlocks != 0 {
		t.Errorf("Drain: %d, %v; dirty %d", wrote, err, r.Stats().DirtyBlocks)
	}
}

func TestWithoutColdTierVictimsAreMisses(t *testing.T) {
	r := newRig(t, 8<<20, false)
	const n, size = 60, 300_000
	for i := range n {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	r.want("0", nil)
	r.want(fmt.Sprint(n-1), data(n-1, size))
	if st := r.Stats(); st.Tiers[0].Evicted == 0 || st.Names != st.Blocks {
		t.Errorf("%+v", st)
	}
}

func TestViewsPinAndRoomRunsOut(t *testing.T) {
	r := newRig(t, 8<<20, false)
	var views []*View
	for i := 0; ; i++ {
		_, err := r.Put(impatient(t), ns(fmt.Sprint(i)), data(uint64(i), 500_000), nil)
		if errors.Is(err, ErrNoRoom) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		v, err := r.Get(context.Background(), "ns", fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		views = append(views, v)
	}
	for i, v := range views {
		if !bytes.Equal(v.Bytes(), data(uint64(i), 500_000)) {
			t.Fatalf("view %d changed", i)
		}
		v.Release()
		v.Release()
	}
	r.put(ns("more"), data(99, 500_000))
	if st := r.settled(); st.Rejected == 0 {
		t.Errorf("%+v", st)
	}
	if _, err := r.Stage(context.Background(), 100<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than the tier: %v", err)
	}
}

func TestDeletedBlockOutlivesItsViews(t *testing.T) {
	r := newRig(t, 8<<20, false)
	p := data(1, 500_000)
	r.put(ns("k"), p)
	v, err := r.Get(context.Background(), "ns", "k")
	if err != nil {
		t.Fatal(err)
	}
	r.Delete(context.Background(), "ns", "k")
	for i := range 40 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i+50), 500_000))
	}
	if !bytes.Equal(v.Bytes(), p) {
		t.Fatal("the view's bytes changed")
	}
	v.Release()
	if st := r.settled(); st.Names != st.Blocks {
		t.Errorf("%+v", st)
	}
}

func TestLeaseKeepsABlockUntilItEnds(t *testing.T) {
	r := newRig(t, 8<<20, false)
	p := data(1, 500_000)
	r.put(ns("leased"), p)
	if !r.Lease(context.Background(), "ns", "leased", "me", time.Minute) || r.Lease(context.Background(), "ns", "absent", "me", time.Minute) {
		t.Error("Lease does not say whether there is such a name")
	}
	fill := func(from int) {
		for i := range 40 {
			r.put(ns(fmt.Sprint(from+i)), data(uint64(from+i), 500_000))
		}
	}
	fill(100)
	if !r.Contains(context.Background(), "ns", "leased") {
		t.Fatal("a leased block was evicted")
	}
	r.advance(2 * time.Minute)
	fill(200)
	if r.Contains(context.Background(), "ns", "leased") {
		t.Error("the lease has ended and the block stays")
	}
	// Leases can not take the whole tier.
	for i := range 40 {
		key := fmt.Sprint(300 + i)
		r.put(ns(key), data(uint64(300+i), 500_000))
		r.Lease(context.Background(), "ns", key, "greedy", time.Hour)
	}
	r.put(ns("last"), data(5, 500_000))
	r.Leases().End("greedy")
	if st := r.Stats(); st.Leases != 0 {
		t.Errorf("%d leases after Unlease", st.Leases)
	}
}

func TestProbeFindsTheLongestPrefix(t *testing.T) {
	r := newRig(t, 16<<20, false)
	keys := []string{"a", "b", "c", "d"}
	for i, k := range keys {
		if k == "c" {
			continue
		}
		e := ns(k)
		if i > 0 {
			e.Parent = keys[i-1]
		}
		r.put(e, data(uint64(i), 1000))
	}
	if p := r.Probe(context.Background(), "ns", keys); p.Hits != 2 || p.Bytes != 2000 || p.Tiers["shm"] != 2 {
		t.Errorf("%+v", p)
	}
	if p := r.Probe(context.Background(), "other", keys); p.Hits != 0 {
		t.Errorf("%+v", p)
	}
	if n := r.Stats().Leases; n != 0 {
		t.Errorf("a probe left %d leases", n)
	}
}

func TestCrashKeepsEverythingAcknowledged(t *testing.T) {
	r := newRig(t, 16<<20, false)
	for i := range 30 {
		e := ns(fmt.Sprint(i))
		if i > 0 {
			e.Parent = fmt.Sprint(i - 1)
		}
		if i%2 == 0 {
			r.put(e, data(uint64(i), 100_000))
		} else if err := r.stage(e, data(uint64(i), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	r.put(ns("3"), data(333, 5000))
	r.Delete(context.Background(), "ns", "7")
	r.put(ns("twin"), data(0, 100_000))
	r.crash()
	for i := range 30 {
		switch want := data(uint64(i), 100_000); i {
		case 3:
			r.want("3", data(333, 5000))
		case 7:
			r.want("7", nil)
		default:
			r.want(fmt.Sprint(i), want)
		}
	}
	r.want("twin", data(0, 100_000))
	info, _ := r.Stat(context.Background(), "ns", "twin")
	if info.Refs != 2 {
		t.Errorf("%+v: the duplicate is not known as one", info)
	}
	if st := r.Stats(); st.Recovered.Names != 30 || st.Recovered.Blocks != 29 {
		t.Errorf("%+v", st.Recovered)
	}
	eventually(t, "recovered blocks get their ids", func() bool { return r.Stats().PendingIDs == 0 })
}

func TestNewestNameWinsAcrossTiers(t *testing.T) {
	r := newRig(t, 16<<20, true)
	r.put(ns("k"), data(1, 1000))
	if _, err := r.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.put(ns("k"), data(2, 1000))
	r.put(ns("gone"), data(3, 1000))
	if _, err := r.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.Delete(context.Background(), "ns", "gone")
	r.crash()
	r.want("k", data(2, 1000))
	r.want("gone", nil)
}

func TestCorruptMemoryIsAMissOrComesFromBelow(t *testing.T) {
	for name, cold := range map[string]bool{"alone": false, "with a clean copy below": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 16<<20, cold)
			p := data(1, 100_000)
			r.put(ns("k"), p)
			if _, err := r.Drain(context.Background()); err != nil {
				t.Fatal(err)
			}
			holder, err := r.Get(context.Background(), "ns", "k")
			if err != nil {
				t.Fatal(err)
			}
			holder.Bytes()[5000] ^= 1
			if cold {
				r.want("k", p)
			} else {
				r.want("k", nil)
			}
			holder.Release()
			r.Sweep()
			if st := r.settled(); st.Corrupt != 1 {
				t.Errorf("%+v", st)
			}
			r.put(ns("k"), p)
			r.want("k", p)
		})
	}
}

func TestEntriesThatCanNotBe(t *testing.T) {
	r := newRig(t, 8<<20, false)
	long := string(make([]byte, block.MaxKey+1))
	for name, e := range map[string]Entry{
		"no key": ns(""), "long key": ns(long), "long namespace": {Namespace: long, Key: "k"},
		"long parent": {Key: "k", Parent: long}, "own parent": {Key: "k", Parent: "k"}, "bound to nothing": {Key: "k", Bound: true},
		"reserved namespace": {Namespace: directory.Contents, Key: "k"},
	} {
		if _, err := r.Put(context.Background(), e, nil, nil); !errors.Is(err, ErrBadEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Names may be chained in a ring by hand; nothing loops.
	r.put(Entry{Namespace: "ns", Key: "x", Parent: "y"}, data(1, 10))
	r.put(Entry{Namespace: "ns", Key: "y", Parent: "x"}, data(2, 10))
	r.want("x", data(1, 10))
	r.want("y", data(2, 10))
}

func TestConcurrentUse(t *testing.T) {
	r := newRig(t, 8<<20, true)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 9))
			for range 150 {
				k := rng.IntN(40)
				key, p := fmt.Sprint(k), data(uint64(k), 20_000+k*10_000)
				switch rng.IntN(6) {
				case 0:
					if _, err := r.Put(context.Background(), ns(key), p, nil); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Error(err)
					}
				case 1, 2:
					if err := r.stage(ns(key), p); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Error(err)
					}
				case 3:
					r.Delete(context.Background(), "ns", key)
				default:
					if v, err := r.Get(context.Background(), "ns", key); err == nil {
						if !bytes.Equal(v.Bytes(), p) {
							t.Errorf("wrong bytes of %s from %s", key, v.Tier())
						}
						v.Release()
					} else if !errors.Is(err, ErrMiss) {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if st := r.settled(); st.Corrupt != 0 {
		t.Errorf("%+v", st)
	}
	checkInvariants(t, r.Store)
}
