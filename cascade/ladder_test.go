package cascade

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/residency"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// disk is a memory tier below shm. Whoever touches a block there, but for the tier itself, panics.
type disk struct{ *testdevice.Tier }

func (disk) Name() string { return "disk" }

func isDisk(m tiers.Memory) bool { _, is := m.(disk); return is }

const shmBytes, diskBytes = 8 << 20, 14 << 20

// ladder is a rig with a disk below shm.
type ladder struct {
	*rig
	disk disk
	top  int // index of shm
}

// newLadder has a disk below shm, a host tier above it if asked for, and a cold tier likewise.
func newLadder(t *testing.T, top, cold bool, change ...func(*Options)) *ladder {
	t.Helper()
	return ladderOf(t, shmBytes, top, cold, change...)
}

// ladderOf is newLadder with so much of shm.
func ladderOf(t *testing.T, shmBytes int64, top, cold bool, change ...func(*Options)) *ladder {
	t.Helper()
	d := disk{testdevice.New(diskBytes)}
	l := &ladder{disk: d}
	l.rig = newRig(t, shmBytes, cold, append(change, func(o *Options) {
		o.Limits.FetchDeadline = cmp.Or(o.Limits.FetchDeadline, patient)
		if top {
			h, err := host.Open(4 << 20)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.WaitReady(context.Background()); err != nil {
				t.Fatal(err)
			}
			o.Memory, l.top = append(o.Memory, fastTier{h}), 1
		}
		o.Memory = append(o.Memory, d)
	})...)
	return l
}

// eachLadder runs a test on all ladders with a disk, in short mode on two of them.
func eachLadder(t *testing.T, test func(t *testing.T, top, cold bool)) {
	for _, top := range []bool{false, true} {
		for _, cold := range []bool{false, true} {
			if testing.Short() && top == cold {
				continue
			}
			t.Run(fmt.Sprintf("top=%v/cold=%v", top, cold), func(t *testing.T) { test(t, top, cold) })
		}
	}
}

// onDisk puts a block and others after it, until the disk alone has the first.
func (l *ladder) onDisk(key string, p []byte) {
	l.t.Helper()
	l.put(ns(key), p)
	l.sink(key)
}

// sink puts blocks until the disk alone has some others. From then on nothing is written to files ahead of need.
func (l *ladder) sink(keys ...string) {
	l.t.Helper()
	l.limit(func(o *Limits) { o.CleanAbove = 1 })
	for i, at := 0, 0; at < len(keys); i++ {
		key := keys[at]
		if slices.Equal(l.from(key), []string{"disk"}) {
			at++
			continue
		}
		if i == 200 {
			l.t.Fatalf("%s is in %v", key, l.from(key))
		}
		l.put(ns(fmt.Sprint(key, " filler ", i)), data(hashOf(key)+uint64(i), 300_000))
	}
}

// TestMoreThanMemoryHolds is put, and all of it is got, by whatever level has it; what is dirty survives a drain.
func TestMoreThanMemoryHolds(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold)
		n, size := 65, 400_000
		if !cold {
			n = 34 // the disk has all of it
		}
		for i := range n {
			e := ns(fmt.Sprint(i))
			e.Prefix = i < 10
			if i%2 == 0 {
				l.put(e, data(uint64(i), size))
			} else if err := l.stage(e, data(uint64(i), size)); err != nil {
				t.Fatal(err)
			}
		}
		seen := map[string]int{}
		for i := n - 1; i >= 0; i-- {
			seen[l.want(fmt.Sprint(i), data(uint64(i), size))]++
		}
		if seen["disk"] == 0 || cold != (seen["host"] > 0) {
			t.Errorf("blocks came from %v", seen)
		}
		if _, err := l.Drain(t.Context()); err != nil || cold && l.Stats().DirtyBlocks != 0 {
			t.Errorf("Drain: %v; %d blocks are dirty", err, l.Stats().DirtyBlocks)
		}
		st := l.Stats()
		if st.Lost != 0 || st.Corrupt != 0 || st.Tiers[l.top].Demoted == 0 || st.Tiers[l.top+1].Hits == 0 {
			t.Errorf("%+v", st)
		}
		if cold { // all of it, though memory is lost
			for _, m := range l.state.Mem {
				l.state.Mu.Lock()
				for _, b := range slices.Clone(m.Nodes) {
					if b != nil && b.In(m.Index) {
						l.state.DropLocked(b, m, false)
					}
				}
				l.state.Mu.Unlock()
			}
			for i := range n {
				l.want(fmt.Sprint(i), data(uint64(i), size))
			}
		}
		checkInvariants(t, l.Store)
	})
}

// TestADiskHitComesUp into shm, where the next get finds it.
func TestADiskHitComesUp(t *testing.T) {
	l := newLadder(t, false, true)
	p := data(1, 300_000)
	l.onDisk("k", p)
	if probe := l.Probe(t.Context(), "other", []string{"k"}); probe.Hits != 0 {
		t.Errorf("%+v", probe)
	}
	l.settled()
	r := why(t, l.Store, "k")
	if !r.Dirty || r.Levels[0].Here || r.Levels[1].Name != "disk" || !r.Levels[1].Here || r.Levels[2].Here {
		t.Errorf("%+v", r)
	}
	if got := l.want("k", p); got != "disk" {
		t.Errorf("it came from %s", got)
	}
	eventually(t, "it is in memory", func() bool { // a read for which there is no room soon does without
		l.want("k", p)
		return slices.Equal(l.from("k"), []string{"shm", "disk"})
	})
	if got := l.want("k", p); got != "shm" {
		t.Errorf("then it came from %s", got)
	}
	if l.Stats().Tiers[1].Load.LatencyUS == 200 { // by the clock of the test it takes no time
		t.Error("nothing is learned of how long the disk takes")
	}
}

// TestTheIndexShowsTheDisk: clients ask the rank for what lies there, and read by themselves what has come up.
func TestTheIndexShowsTheDisk(t *testing.T) {
	l := newLadder(t, false, true)
	p := data(1, 300_000)
	l.onDisk("k", p)
	x := l.reader()
	if e, _, ok := x.Lookup(shmindex.FingerprintOf("ns", "k")); !ok || e.Kind != shmindex.Here || e.Tier != 1 || e.Offset != 0 {
		t.Errorf("shown: %v, as %+v", ok, e)
	}
	l.want("k", p)
	if e, _, ok := x.Lookup(shmindex.FingerprintOf("ns", "k")); !ok || e.Kind != shmindex.InArena || e.Tier != 0 {
		t.Errorf("shown: %v, as %+v", ok, e)
	}
	checkInvariants(t, l.Store)
}

// TestProbeCountsTheDisk: a run of its own, with an estimate of its own, and what is probed is brought up.
func TestProbeCountsTheDisk(t *testing.T) {
	l := newLadder(t, false, true)
	l.onDisk("k", data(1, 300_000))
	slow := estimate.Line{Latency: 50 * time.Millisecond}
	l.state.Deep().Speed = estimate.NewSpeed(slow)
	probe := l.Probe(t.Context(), "ns", []string{"k"})
	if probe.Hits != 1 || probe.Tiers["disk"] != 1 || probe.LoadUS() < slow.Latency.Microseconds() {
		t.Errorf("%+v", probe)
	}
	eventually(t, "it is brought up", func() bool { return slices.Contains(l.from("k"), "shm") })
}

// TestVictimsOfShmLeaveAtOnce where copies of them were made ahead of need.
func TestVictimsOfShmLeaveAtOnce(t *testing.T) {
	l := newLadder(t, false, true)
	const size = 300_000
	used := func() bool { u := l.state.Host().Memory.Usage(); return u.Used+2*size > u.Capacity }
	for i := 0; !used(); i++ {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	eventually(t, "the coldest are on the disk too", func() bool { return len(l.from("0")) == 2 })
	l.disk.Set(testdevice.Faults{HangWrites: true})
	for i := range 4 {
		l.put(ns(fmt.Sprint("more", i)), data(uint64(1000+i), size))
	}
	l.disk.Set(testdevice.Faults{})
	l.want("0", data(0, size))
}

// TestACleanBlockIsWorthACopyOnTheDisk, which is faster than files.
func TestACleanBlockIsWorthACopyOnTheDisk(t *testing.T) {
	l := newLadder(t, false, true)
	p := data(1, 300_000)
	l.put(ns("k"), p)
	if _, err := l.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := 0; slices.Contains(l.from("k"), "shm"); i++ {
		l.put(ns(fmt.Sprint(i)), data(uint64(100+i), 300_000))
	}
	if got := l.from("k"); !slices.Equal(got, []string{"disk", "host"}) {
		t.Errorf("it is in %v", got)
	}
	if got := l.want("k", p); got != "disk" {
		t.Errorf("it came from %s", got)
	}
}

// TestDeletedAndOverwritten names of blocks on the disk stay so, after a restart too.
func TestDeletedAndOverwritten(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold)
		const size = 300_000
		keys := []string{"stays", "deleted", "overwritten", "both", "twin"}
		for _, key := range keys {
			p := data(hashOf(key), size)
			if key == "twin" {
				p = data(hashOf("deleted"), size)
			}
			l.put(ns(key), p)
		}
		fillers := 0
		for ; slices.ContainsFunc(keys, func(key string) bool { return l.from(key)[0] != "disk" }); fillers++ {
			l.put(ns(fmt.Sprint(fillers)), data(uint64(fillers), size))
		}
		l.want("both", data(hashOf("both"), size)) // up in shm, and on the disk
		l.Delete(t.Context(), "ns", "deleted")
		l.put(ns("overwritten"), data(7, size))
		check := func() {
			t.Helper()
			l.want("deleted", nil)
			l.want("twin", data(hashOf("deleted"), size))
			l.want("overwritten", data(7, size))
			l.want("stays", data(hashOf("stays"), size))
			l.want("both", data(hashOf("both"), size))
		}
		check()
		l.Delete(t.Context(), "ns", "both")
		l.restart()
		l.want("both", nil)
		l.put(ns("both"), data(hashOf("both"), size))
		check()
		checkInvariants(t, l.Store)
		for _, key := range keys {
			l.Delete(t.Context(), "ns", key)
		}
		for i := range fillers {
			l.Delete(t.Context(), "ns", fmt.Sprint(i))
		}
		if st := l.settled(); st.Blocks != 0 || l.disk.Usage().Blocks != 0 {
			t.Errorf("%d blocks are left, %d on the disk", st.Blocks, l.disk.Usage().Blocks)
		}
	})
}

// restart ends the process without a drain; arena and disk are as they were.
func (l *ladder) restart() {
	l.t.Helper()
	again := disk{l.disk.Reopened()}
	l.opt.Memory = slices.Clone(l.opt.Memory)
	l.opt.Memory[len(l.opt.Memory)-1], l.disk = again, again
	if l.top == 1 {
		h, err := host.Open(4 << 20)
		if err == nil {
			err = h.WaitReady(context.Background())
		}
		if err != nil {
			l.t.Fatal(err)
		}
		l.opt.Memory[0] = fastTier{h}
	}
	l.crash()
}

// TestWhatTheDiskKept is there after a restart with an empty arena.
func TestWhatTheDiskKept(t *testing.T) {
	l := newLadder(t, false, false)
	const size = 300_000
	for i := range 60 {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	before := -1
	eventually(t, "no copies ahead of need are under way", func() bool {
		was := before
		before = l.disk.Usage().Blocks
		time.Sleep(20 * time.Millisecond)
		l.state.Mu.Lock()
		defer l.state.Mu.Unlock()
		return was == before && l.state.Mu.Writes.Demoting == 0
	})
	var kept []int
	for i := range 60 {
		if slices.Contains(l.from(fmt.Sprint(i)), "disk") {
			kept = append(kept, i)
		}
	}
	l.opt.Memory = []tiers.Memory{disk{l.disk.Reopened()}}
	old := l.Store
	t.Cleanup(func() { old.Close(context.Background()) })
	l.dir = t.TempDir()
	l.open()
	if len(kept) == 0 || l.Stats().Recovered.Blocks != len(kept) {
		t.Errorf("recovered %d blocks, want %d", l.Stats().Recovered.Blocks, len(kept))
	}
	for _, i := range kept {
		if tier := l.want(fmt.Sprint(i), data(uint64(i), size)); tier != "disk" {
			t.Errorf("%d came from %s", i, tier)
		}
	}
	checkInvariants(t, l.Store)
}

// TestLeasesHoldOnTheDisk: what is promised stays readable, in the slowest level of memory, within a share of shm.
func TestLeasesHoldOnTheDisk(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold)
		const size = 300_000
		l.put(ns("leased"), data(1, size))
		l.Lease(t.Context(), "ns", "leased", "me", time.Hour)
		for i := range 90 { // more than all memory has
			l.put(ns(fmt.Sprint(i)), data(uint64(100+i), size))
		}
		l.want("leased", data(1, size))
		if n := l.Stats().Names; !cold && n > 90 {
			t.Errorf("%d names: nothing had to leave", n)
		}
		for i := range 40 {
			key := fmt.Sprint("greedy", i)
			l.put(ns(key), data(uint64(1000+i), size))
			l.Lease(t.Context(), "ns", key, "greedy", time.Hour)
		}
		l.state.Mu.Lock()
		held := l.state.Mu.Names.HeldBytes()
		l.state.Mu.Unlock()
		if held > shmBytes/2 {
			t.Errorf("leases hold %d bytes", held)
		}
		l.put(ns("last"), data(5, size))
		checkInvariants(t, l.Store)
	})
}

// TestOthersReadTheDisk: another rank gets a block that only the disk has, whole or in parts, and a process that maps
// the arena does.
func TestOthersReadTheDisk(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold)
		p := data(1, 300_000)
		l.onDisk("k", p)
		at := Local{l.Store}.State("ns", "k").Memory
		if at == nil || int(at.Region) != l.state.Last().Index {
			t.Fatalf("the block is stated to be in %+v", at)
		}
		for from, n := range map[int64]int64{0: 300_000, 1: 10, 150_000: 150_000} {
			src := fabric.Source{Region: at.Region, Offset: at.Offset + from, Generation: at.Generation, Length: n}
			hold, err := Local{l.Store}.Hold(src)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(hold.Bytes(), p[from:from+n]) {
				t.Errorf("another rank reads other bytes from %d on", from)
			}
			l.forOthers.Add(forOthersBytes)
			if _, err := (Local{l.Store}).Hold(src); !errors.Is(err, fabric.ErrStale) {
				t.Errorf("beside as many bytes as there may be: %v", err)
			}
			l.forOthers.Add(-forOthersBytes)
			hold.Release()
		}
		if n := l.forOthers.Load(); n != 0 {
			t.Errorf("%d bytes are left", n)
		}
		if region, fd, size := (Local{l.Store}).SharedFile(); int(region) != l.top || fd < 0 || size < shmBytes {
			t.Errorf("the file that others map is of region %d: %d, %d bytes", region, fd, size)
		}
		if got := l.from("k"); !slices.Equal(got, []string{"disk"}) {
			t.Errorf("the block is in %v", got)
		}
		v, err := l.Get(t.Context(), "ns", "k", Resident)
		if err == nil {
			v, err = l.Share(t.Context(), v)
		}
		if err != nil {
			t.Fatal(err)
		}
		l.wantInArena(v, p)
		v.Release()
	})
}

// TestRanksReadEachOthersDisks, by the fabric.
func TestRanksReadEachOthersDisks(t *testing.T) {
	d := disk{testdevice.New(diskBytes)}
	j := (&job{t: t, below: map[fabric.Rank]tiers.Memory{0: d}}).open(2, shmBytes)
	p := data(1, 300_000)
	r := &rig{t: t, Store: j.ranks[0].Store}
	r.put(ns("k"), p)
	for i := 0; !slices.Equal(r.from("k"), []string{"disk"}); i++ {
		r.put(ns(fmt.Sprint(i)), data(uint64(100+i), 300_000))
	}
	j.settle()
	if tier := (&rig{t: t, Store: j.ranks[1].Store}).want("k", p); tier != residency.RemoteTier {
		t.Errorf("it came from %s", tier)
	}
}

// TestLadderUnderLoad puts, stages, gets, leases and deletes from several goroutines.
func TestLadderUnderLoad(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold)
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() { l.churn(w, 120) })
		}
		wg.Wait()
		eventually(t, "nothing is under way", func() bool { return l.Stats().Views == 0 })
		if st := l.Stats(); st.Corrupt != 0 || cold && st.Lost != 0 || st.Tiers[l.top+1].Usage.Blocks == 0 {
			t.Errorf("%+v", st)
		}
		checkInvariants(t, l.Store)
	})
}

// churn is what one client of TestLadderUnderLoad does.
func (l *ladder) churn(client, steps int) {
	rng := rand.New(rand.NewPCG(uint64(client), 6))
	for range steps {
		k := rng.IntN(150)
		key, p := fmt.Sprint(k), data(uint64(k), 50_000+k*3000)
		e := ns(key)
		e.Prefix = k%3 == 0
		if k > 0 {
			e.Parent = fmt.Sprint(k / 2)
		}
		var err error
		switch rng.IntN(8) {
		case 0, 1:
			_, err = l.Put(context.Background(), e, p, nil)
		case 2:
			err = l.stage(e, p)
		case 3:
			l.Delete(context.Background(), "ns", key)
		case 4:
			l.Probe(context.Background(), "ns", []string{key, fmt.Sprint(2 * k), fmt.Sprint(4 * k)})
			l.Lease(context.Background(), "ns", key, fmt.Sprint(client), time.Hour)
			l.Leases().End(fmt.Sprint(client))
		default:
			v, miss := l.Get(context.Background(), "ns", key)
			if miss == nil && !bytes.Equal(v.Bytes(), p) {
				err = errors.New("wrong bytes from " + v.Tier())
			}
			if miss == nil {
				v.Release()
			}
		}
		if err != nil && !errors.Is(err, ErrNoRoom) {
			l.t.Errorf("%s: %v", key, err)
		}
	}
}

// TestSpillModelDisk is TestSpillModel with a disk below shm, which a killed process leaves as it is.
func TestSpillModelDisk(t *testing.T) {
	seeds, most := spillSeeds(), 5
	if testing.Short() {
		most = 1
	}
	for _, seed := range seeds[:min(len(seeds), most)] {
		for _, kills := range []string{"process", "node"} {
			t.Run(fmt.Sprint(seed, kills), func(t *testing.T) { runSpillModel(t, seed, kills, true, testdevice.New(modelDisk)) })
		}
	}
}

// TestIdsBeforeTheDisk: a block has its id before it lies there, and equal bytes lie there once.
func TestIdsBeforeTheDisk(t *testing.T) {
	l := newLadder(t, false, false)
	p := data(1, 300_000)
	for _, key := range []string{"a", "b"} {
		if err := l.stage(ns(key), p); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; !slices.Equal(l.from("a"), []string{"disk"}) || !slices.Equal(l.from("b"), []string{"disk"}); i++ {
		if err := l.stage(ns(fmt.Sprint(i)), data(uint64(100+i), 300_000)); err != nil {
			t.Fatal(err)
		}
	}
	if info, _ := l.Stat(t.Context(), "ns", "a"); info.ID != block.Sum(block.Bits128, p) || info.Refs != 2 {
		t.Errorf("%+v", info)
	}
}
