package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

const size = 1000 // of the blocks of these tests

// room is a change of options: the first tier holds so many blocks.
func room(blocks int64) func(*residency.Options) {
	return func(o *residency.Options) { o.Capacity, o.Policy = blocks*size, "lru" }
}

func impatient(o *residency.Options) { o.Limits.RoomDeadline = 50 * time.Millisecond }

// fill puts blocks "0" to "n-1" into a tier, and returns their keys.
func fill(r *parttest.Rank, m *residency.Level, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
		r.PutIn(m, parttest.Name(keys[i]), parttest.Data(uint64(i), size))
	}
	return keys
}

// reserve has room made for one more block, and gives it back.
func reserve(t *testing.T, r *parttest.Rank, m *residency.Level, most Price) error {
	t.Helper()
	slot, err := New(r.State).Reserve(t.Context(), m, size, most)
	if err == nil {
		if got := len(slot.Bytes()); got != size {
			t.Errorf("the slot has %d bytes", got)
		}
		slot.Abort()
	}
	return err
}

// coldDown has the cold tier left alone.
func coldDown(r *parttest.Rank) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Mu.Writes.ColdDown = r.Now().Add(time.Hour)
}

// What the policy gives up next leaves, one block for one, and nothing while there is
// room.
func TestReserveEvictsWhatThePolicyGivesUp(t *testing.T) {
	r := parttest.New(t, room(10))
	keys := fill(r, r.Last(), 9)
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil || r.Last().Stats.Evicted != 0 {
		t.Fatalf("%v, %d evicted with room for one", err, r.Last().Stats.Evicted)
	}
	r.Put(parttest.Name("9"), parttest.Data(9, size))
	r.Ask("0")
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil {
		t.Fatal(err)
	}
	if got := r.Has(append(keys, "9")...); len(got) != 9 || slices.Contains(got, "1") {
		t.Errorf("%v stay, want all but 1, for 0 was asked for", got)
	}
	if st := r.Last().Stats; st.Evicted != 1 || r.Count.Stats.Lost != 0 {
		t.Errorf("%+v, %d lost", st, r.Count.Stats.Lost)
	}
	parttest.Check(t, r.State)
}

// What can never fit is refused at once, and so is everything once the store is closed.
func TestReserveRefuses(t *testing.T) {
	r := parttest.New(t, room(10))
	e := New(r.State)
	fill(r, r.Last(), 10)
	if _, err := e.Reserve(t.Context(), r.Last(), 10*size+1, AnyBlock); !errors.Is(err, residency.ErrTooLarge) {
		t.Errorf("more than the capacity: %v", err)
	}
	if e.ReserveNow(r.Last(), 10*size+1, AnyBlock) != nil {
		t.Error("more than the capacity: there is room at once")
	}
	r.Capacity = 0
	if _, err := e.Reserve(t.Context(), r.Last(), 2*parttest.MemoryBytes, AnyBlock); !errors.Is(err, residency.ErrTooLarge) {
		t.Errorf("more than the tier: %v", err)
	}
	r.Capacity = 10 * size
	r.Mu.Lock()
	r.Mu.Closed = true
	r.Mu.Unlock()
	if err := reserve(t, r, r.Last(), AnyBlock); !errors.Is(err, residency.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if r.Last().Stats.Evicted != 0 {
		t.Errorf("%d blocks are evicted", r.Last().Stats.Evicted)
	}
}

// Without a victim Reserve waits until the deadline, or until one is released.
func TestReserveWaits(t *testing.T) {
	r := parttest.New(t, room(3), impatient)
	keys := fill(r, r.Last(), 3)
	var views []*residency.View
	for _, k := range keys {
		views = append(views, r.Pin(k))
	}
	if err := reserve(t, r, r.Last(), AnyBlock); !errors.Is(err, residency.ErrNoRoom) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("every block is pinned: %v", err)
	}
	r.Limit(func(l *residency.Limits) { l.RoomDeadline = time.Minute })
	if err := reserve(t, r, r.Last(), Unheld); !errors.Is(err, residency.ErrNoRoom) || !errors.Is(err, errHeld) {
		t.Errorf("every block is pinned, for who has memory of its own: %v", err)
	}
	got, none := make(chan error), r.Mu.Waiters
	go func() { got <- reserve(t, r, r.Last(), AnyBlock) }()
	parttest.Eventually(t, "somebody waits", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return r.Mu.Waiters != none
	})
	views[1].Release()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if got := r.Has(keys...); !slices.Equal(got, []string{"0", "2"}) {
		t.Errorf("%v stay", got)
	}
	views[0].Release()
	views[2].Release()
	parttest.Check(t, r.State)
}

// Where a cold tier takes no writes, a read gives up copies only; a put may cost the
// only copy of a block, and that is counted.
func TestAReadCostsNoOnlyCopy(t *testing.T) {
	r := parttest.New(t, room(2), impatient, parttest.NewFiles(t).Use)
	fill(r, r.Last(), 2)
	coldDown(r)
	if err := reserve(t, r, r.Last(), CopyOnly); !errors.Is(err, residency.ErrNoRoom) || !errors.Is(err, errOnlyCopy) {
		t.Errorf("only copies: %v", err)
	}
	if New(r.State).ReserveNow(r.Last(), size, CopyOnly) != nil {
		t.Error("only copies: there is room at once")
	}
	if got := r.Has("0", "1"); len(got) != 2 {
		t.Errorf("%v stay", got)
	}
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil || r.Count.Stats.Lost != 1 {
		t.Errorf("%v, %d lost", err, r.Count.Stats.Lost)
	}
	r.PutCold(parttest.Name("copy"), parttest.Data(9, size))
	r.Put(parttest.Name("copy"), parttest.Data(9, size))
	r.Mu.Lock()
	r.Mu.Writes.SyncedSeq = r.Mu.Writes.LinkSeq
	r.Mu.Unlock()
	r.Ask("1") // so that the copy is the older one
	if err := reserve(t, r, r.Last(), CopyOnly); err != nil || r.Count.Stats.Lost != 1 {
		t.Errorf("%v, %d lost", err, r.Count.Stats.Lost)
	}
	if got := r.Has("1", "copy"); len(got) != 2 || r.Block("copy").InAny() {
		t.Errorf("%v stay", got)
	}
	parttest.Check(t, r.State)
}

// A rank without a cold tier keeps what it reads: the least worth keeping gives way.
func TestAReadMakesRoomWithoutAColdTier(t *testing.T) {
	r := parttest.New(t, room(2))
	fill(r, r.Last(), 2)
	if err := reserve(t, r, r.Last(), CopyOnly); err != nil {
		t.Error(err)
	}
	if got := r.Has("0", "1"); !slices.Equal(got, []string{"1"}) {
		t.Errorf("%v stay", got)
	}
}

// whenAsked does fn once the cleaner is woken, with the mutex held, and wakes those
// who wait for room.
func whenAsked(r *parttest.Rank, fn func()) {
	go func() {
		<-r.CleanerWake
		r.Mu.Lock()
		defer r.Mu.Unlock()
		fn()
		r.WakeWaitersLocked()
	}()
}

// A dirty victim leaves once the cold tier has it, and keeps its name.
func TestADirtyVictimWaitsForTheCleaner(t *testing.T) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, room(2), files.Use)
	fill(r, r.Last(), 2)
	b, demanded := r.Block("0"), false
	whenAsked(r, func() {
		demanded = r.Mu.Writes.CleanRequested
		_ = files.Put(context.Background(), tiers.Item{Info: b.Info, Names: b.Records(), Data: parttest.Data(0, size)})
		r.Cold.StoredLocked(b)
	})
	if err := reserve(t, r, r.Last(), CopyOnly); err != nil {
		t.Fatal(err)
	}
	if !demanded || r.Block("0") != b || b.InAny() || r.Count.Stats.Lost != 0 {
		t.Errorf("demanded %v; block 0 is in memory: %v; %d lost", demanded, b.InAny(), r.Count.Stats.Lost)
	}
	parttest.Check(t, r.State)
}

// What the cold tier has leaves once the names that it was given are durable.
func TestACleanVictimWaitsForItsNames(t *testing.T) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, room(1), files.Use)
	b := r.PutCold(parttest.Name("a"), parttest.Data(1, size))
	r.Put(parttest.Name("b"), parttest.Data(1, size)) // a name that the tier was given later
	<-r.CleanerWake
	requested := false
	whenAsked(r, func() {
		requested = r.Mu.Writes.SyncRequested && b.InAny()
		r.Mu.Writes.SyncedSeq = r.Mu.Writes.LinkSeq
	})
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil || !requested || b.InAny() {
		t.Errorf("%v, requested %v, in memory %v", err, requested, b.InAny())
	}
}

// While a batch is written that is colder than the next victim, the batch is waited for.
func TestABatchLeavesBeforeWhatIsWarmer(t *testing.T) {
	r := parttest.New(t, room(1), impatient, parttest.NewFiles(t).Use)
	r.PutCold(parttest.Name("a"), parttest.Data(1, size))
	r.Put(parttest.Name("a"), parttest.Data(1, size))
	w := &r.Mu.Writes
	r.Mu.Lock()
	w.SyncedSeq = w.LinkSeq
	w.Batch = residency.Batch{InFlight: true}
	r.Mu.Unlock()
	if err := reserve(t, r, r.Last(), AnyBlock); !errors.Is(err, residency.ErrNoRoom) {
		t.Errorf("a batch is under way: %v", err)
	}
	r.Mu.Lock()
	w.Batch.Clean = 1 // the victim is colder than the batch
	r.Mu.Unlock()
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil || w.Batch.Clean != 0 {
		t.Errorf("%v, %d clean victims", err, w.Batch.Clean)
	}
}

// A leased block that would be lost is no victim, as far as the budget of leases goes.
func TestALeasedBlockIsNotLost(t *testing.T) {
	r := parttest.New(t, room(2), impatient, parttest.NewFiles(t).Use)
	fill(r, r.Last(), 2)
	for _, k := range []string{"0", "1"} {
		r.Leases.Renew("ns", k, "me", time.Hour)
	}
	coldDown(r)
	held := int64(0)
	for range 100 { // a lease is held once its block is the next victim, and a wait has an end
		if err := reserve(t, r, r.Last(), AnyBlock); !errors.Is(err, residency.ErrNoRoom) || len(r.Has("0", "1")) != 2 {
			t.Fatalf("%v; %v stay", err, r.Has("0", "1"))
		}
		if held = r.Mu.Names.HeldBytes(); held == 2*size {
			break
		}
	}
	if held != 2*size {
		t.Errorf("leases hold %d bytes", held)
	}
	r.Leases.End("me")
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil {
		t.Error(err)
	}
}

// Blocks with equal bytes at several places of their chains hold each other in a ring:
// one of them leaves all the same, but none while something else would end by itself.
func TestARingIsBroken(t *testing.T) {
	r := parttest.New(t, room(2), impatient)
	p, q := parttest.Data(1, size), parttest.Data(2, size)
	r.Put(parttest.Name("b", "a"), q)
	r.Put(parttest.Name("a"), p)
	r.Put(parttest.Name("c", "b"), p)
	v := r.Pin("b")
	if err := reserve(t, r, r.Last(), AnyBlock); !errors.Is(err, residency.ErrNoRoom) {
		t.Errorf("with a view of one: %v", err)
	}
	v.Release()
	if err := reserve(t, r, r.Last(), AnyBlock); err != nil {
		t.Error(err)
	}
	if got := r.Has("a", "b", "c"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v stay", got)
	}
	parttest.Check(t, r.State)
}

// TestEqualBytesInARingCanBeEvicted: names whose blocks hold each other can
// not fill a tier for ever.
func TestEqualBytesInARingCanBeEvicted(t *testing.T) {
	r := parttest.New(t)
	e := New(r.State)
	for i := range 200 {
		a, b := parttest.Data(uint64(2*i), 100_000), parttest.Data(uint64(2*i+1), 100_000)
		k := func(j int) string { return fmt.Sprint(i, ".", j) }
		for j, p := range [][]byte{a, b, a} {
			n := parttest.Name(k(j))
			if j > 0 {
				n.Parent = k(j - 1)
			}
			slot, err := e.Reserve(t.Context(), r.Last(), int64(len(p)), AnyBlock)
			if err != nil {
				t.Fatal(err)
			}
			copy(slot.Bytes(), p)
			r.Commit(r.Last(), slot, n, block.Info{ID: block.Sum(r.IDBits, p), Size: int64(len(p)), CRC: block.CRC(p)})
		}
	}
	parttest.Check(t, r.State)
}

// Chains that grow in turns leave one after the other, each from its end.
func TestChainsThatGrowInTurnsLeaveInOrder(t *testing.T) {
	for _, p := range policy.Names() {
		t.Run(p, func(t *testing.T) {
			r := parttest.New(t, func(o *residency.Options) { o.Policy = p })
			const chains, length = 3, 20
			var want []string
			for i := range length {
				for c := range chains {
					n := parttest.Name(fmt.Sprint(c, ".", i))
					if i > 0 {
						n.Parent = fmt.Sprint(c, ".", i-1)
					}
					r.Requests.Stored(r.Put(n, parttest.Data(uint64(c*length+i), 100)).Names()...)
				}
			}
			for c := range chains {
				for i := length - 1; i >= 0; i-- {
					want = append(want, fmt.Sprint(c, ".", i))
				}
			}
			var got []string
			e, m := New(r.State), r.Last()
			r.Mu.Lock()
			for b := e.VictimLocked(m); b != nil; b = e.VictimLocked(m) {
				got = append(got, b.Names()[0].Key())
				e.evictLocked(b, m, policy.NoLoss)
			}
			r.Mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("left in the order %v", got)
			}
		})
	}
}

// twoTiers is a state with a tier of so many blocks above the arena.
func twoTiers(t *testing.T, blocks int64, change ...func(*residency.Options)) *parttest.Rank {
	return parttest.New(t, append(change, room(blocks), func(o *residency.Options) {
		o.Policy = "paper"
		o.Memory = []tiers.Memory{parttest.Host(t), parttest.Arena(t, t.TempDir()+"/a")}
	})...)
}

// A victim that is a shared prefix falls to the next memory tier, and so does any when
// the cold tier takes nothing; others fall to the cold tier (Algorithm 1, lines 6 to 10).
func TestVictimsFallOneLevel(t *testing.T) {
	for name, x := range map[string]struct {
		prefix, down bool
		falls        policy.Step
	}{
		"prefix":                  {true, false, policy.Copy},
		"session":                 {false, false, policy.Write},
		"session, no cold writes": {false, true, policy.Copy},
	} {
		t.Run(name, func(t *testing.T) {
			r := twoTiers(t, 1, parttest.NewFiles(t).Use)
			n := parttest.Name("a")
			n.Prefix = x.prefix
			b := r.PutIn(r.Mem[0], n, parttest.Data(1, size))
			if x.down {
				coldDown(r)
			}
			e := New(r.State)
			r.Mu.Lock()
			falls, _ := e.decideLocked(e.VictimLocked(r.Mem[0]), r.Mem[0])
			r.Mu.Unlock()
			if falls != x.falls {
				t.Fatalf("it is %d, want %d", falls, x.falls)
			}
			if falls != policy.Copy {
				return
			}
			if err := reserve(t, r, r.Mem[0], AnyBlock); err != nil {
				t.Fatal(err)
			}
			if b.In(0) || !b.In(1) || r.Mem[0].Stats.Demoted != 1 || r.Count.Stats.Lost != 0 {
				t.Errorf("in %v, %v; %+v", b.In(0), b.In(1), r.Mem[0].Stats)
			}
			v := r.Pin("a")
			defer v.Release()
			if !slices.Equal(v.Bytes(), parttest.Data(1, size)) || v.Tier() != "shm" {
				t.Errorf("other bytes in %s", v.Tier())
			}
			parttest.Check(t, r.State)
		})
	}
}

// A victim whose bytes are bad makes room and falls nowhere.
func TestABadVictimIsWithdrawn(t *testing.T) {
	r := twoTiers(t, 1)
	m := r.Mem[0]
	slot, err := m.Memory.Reserve(size)
	if err != nil {
		t.Fatal(err)
	}
	copy(slot.Bytes(), parttest.Data(1, size))
	b := r.Commit(m, slot, parttest.Name("a"), block.Info{ID: block.Sum(block.Bits128, parttest.Data(1, size)), Size: size, CRC: 7})
	if err := reserve(t, r, m, AnyBlock); err != nil {
		t.Fatal(err)
	}
	if b.InAny() || r.Block("a") != nil || r.Count.Stats.Corrupt != 1 || m.Stats.Demoted != 0 {
		t.Errorf("in memory %v, %d corrupt, %+v", b.InAny(), r.Count.Stats.Corrupt, m.Stats)
	}
	parttest.Check(t, r.State)
}

// A hit of a slower tier is copied to the fastest, where that costs no only copy.
func TestHitsArePromoted(t *testing.T) {
	for _, down := range []bool{false, true} {
		r := twoTiers(t, 1, parttest.NewFiles(t).Use)
		slow := r.PutIn(r.Mem[1], parttest.Name("slow"), parttest.Data(1, size))
		if down {
			r.PutIn(r.Mem[0], parttest.Name("fast"), parttest.Data(2, size))
			r.PutIn(r.Mem[1], parttest.Name("last"), parttest.Data(3, size))
			r.Mem[1].Memory = full{r.Mem[1].Memory, 2}
			coldDown(r)
		}
		v := r.Pin("slow")
		New(r.State).Promote(t.Context(), []*residency.View{nil, v})
		v.Release()
		if slow.In(0) == down || !slow.In(1) || down && len(r.Has("fast", "last")) < 2 {
			t.Errorf("full of only copies %v: the hit is in the fastest tier: %v", down, slow.In(0))
		}
		parttest.Check(t, r.State)
	}
}

// full is a memory tier that holds so many blocks.
type full struct {
	tiers.Memory
	blocks int
}

func (m full) Reserve(size int64) (tiers.Slot, error) {
	if m.Usage().Blocks >= m.blocks {
		return nil, tiers.ErrFull
	}
	return m.Memory.Reserve(size)
}
