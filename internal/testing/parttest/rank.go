package parttest

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/testlog"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
	"cascadekv/tiers/shm"
)

// MemoryBytes is the size of an arena, and of each tier of Host.
const MemoryBytes = 8 << 20

// Rank is the state of one rank.
type Rank struct {
	*residency.State
	Seen *Watcher    // what State.Watch was called for
	Log  testlog.Log // what State.Log was given

	t     testing.TB
	clock clock
}

type clock struct {
	sync.Mutex
	now time.Time
}

// New returns the state of a rank that holds nothing. Its only memory tier is an
// arena in a file, unless change sets others.
func New(t testing.TB, change ...func(*residency.Options)) *Rank {
	t.Helper()
	r := &Rank{Seen: &Watcher{}, t: t}
	r.clock.now = time.Unix(1_800_000_000, 0)
	o := residency.Options{Now: r.now, Log: slog.New(slog.NewTextHandler(&r.Log, nil)), Limits: residency.Limits{RoomDeadline: 30 * time.Second}}
	for _, f := range change {
		f(&o)
	}
	if len(o.Memory) == 0 {
		o.Memory = []tiers.Memory{Arena(t, filepath.Join(t.TempDir(), "a.arena"))}
	}
	var err error
	if r.State, err = residency.New(o, r.Seen); err != nil {
		t.Fatal(err)
	}
	return r
}

// Arena opens a memory tier whose file outlives it.
func Arena(t testing.TB, path string) tiers.Memory {
	t.Helper()
	m, err := shm.Open(path, MemoryBytes)
	if err == nil {
		err = m.WaitReady(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Host opens a memory tier that ends with the test.
func Host(t testing.TB) tiers.Memory {
	t.Helper()
	m, err := host.Open(MemoryBytes)
	if err == nil {
		err = m.WaitReady(context.Background())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func (r *Rank) now() time.Time {
	r.clock.Lock()
	defer r.clock.Unlock()
	return r.clock.now
}

// Advance sets the clock forward.
func (r *Rank) Advance(d time.Duration) {
	r.clock.Lock()
	defer r.clock.Unlock()
	r.clock.now = r.clock.now.Add(d)
}

// Limit changes the limits.
func (r *Rank) Limit(change func(*residency.Limits)) {
	l := *r.Limits.Load()
	change(&l)
	r.Limits.Store(&l)
}

// Name is a name of the namespace "ns", with a parent or without.
func Name(key string, parent ...string) block.Name {
	n := block.Name{Namespace: "ns", Key: key}
	if len(parent) > 0 {
		n.Parent = parent[0]
	}
	return n
}

// Data returns size bytes, the same for the same seed.
func Data(seed uint64, size int) []byte { return noise.Bytes(seed, size) }

// Put stores data under n in the last memory tier, where there is room, as of the
// next tick. A block with these bytes gets one more name.
func (r *Rank) Put(n block.Name, data []byte) *residency.Block {
	r.t.Helper()
	return r.PutIn(r.Last(), n, data)
}

// PutIn is Put into a memory tier.
func (r *Rank) PutIn(m *residency.Level, n block.Name, data []byte) *residency.Block {
	r.t.Helper()
	return r.put(m, n, data, block.Sum(r.IDBits, data))
}

// PutPending is Put of a block whose id is not computed yet.
func (r *Rank) PutPending(n block.Name, data []byte) *residency.Block {
	r.t.Helper()
	r.Mu.Lock()
	id := r.ProvisionalLocked()
	r.Mu.Unlock()
	b := r.put(r.Last(), n, data, id)
	r.Mu.Lock()
	r.Pending.Push(b)
	r.Mu.Unlock()
	return b
}

func (r *Rank) put(m *residency.Level, n block.Name, data []byte, id block.ID) *residency.Block {
	r.t.Helper()
	slot, err := m.Memory.Reserve(int64(len(data)))
	must(r.t, n.Key, err)
	copy(slot.Bytes(), data)
	return r.Commit(m, slot, n, block.Info{ID: id, Size: int64(len(data)), CRC: block.CRC(data)})
}

// Commit makes a block of a filled slot of m and names it.
func (r *Rank) Commit(m *residency.Level, slot tiers.Slot, n block.Name, info block.Info) *residency.Block {
	r.t.Helper()
	r.Mu.Lock()
	defer r.Mu.Unlock()
	defer slot.Abort()
	b := r.FoundLocked(info)
	if !b.In(m.Index) {
		if b.Fingerprint == 0 {
			b.Fingerprint = block.Fingerprint(n.Namespace, n.Key)
		}
		must(r.t, n.Key, slot.Commit(info, b.Records()))
		r.EnterLocked(b, m)
	}
	r.BindLocked(n, false, b, r.Now())
	return b
}

// PutCold stores data under n in the cold tier alone.
func (r *Rank) PutCold(n block.Name, data []byte) *residency.Block {
	r.t.Helper()
	r.Mu.Lock()
	n.Seq = r.TickLocked()
	r.Mu.Unlock()
	info := block.Info{ID: block.Sum(r.IDBits, data), Size: int64(len(data)), CRC: block.CRC(data)}
	must(r.t, n.Key, r.Cold.Files.Put(context.Background(), tiers.Item{Info: info, Names: []block.Name{n}, Data: data}))
	r.Mu.Lock()
	defer r.Mu.Unlock()
	b := r.FoundLocked(info)
	b.Fingerprint = block.Fingerprint(n.Namespace, n.Key)
	r.BindRecordedLocked(n, b)
	r.Cold.StoredLocked(b)
	return b
}

func must(t testing.TB, key string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%q: %v", key, err)
	}
}

// Block is what a visible name stands for, nil for none.
func (r *Rank) Block(key string) *residency.Block {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if n := r.LookupLocked("ns", key); n != nil {
		return residency.BlockOf(n)
	}
	return nil
}

// Has lists those of some keys that are visible, in their order.
func (r *Rank) Has(keys ...string) (visible []string) {
	for _, k := range keys {
		if r.Block(k) != nil {
			visible = append(visible, k)
		}
	}
	return visible
}

// Locked returns what fn does, which is called with State.Mu held.
func Locked[T any](s *residency.State, fn func() T) T {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return fn()
}

// Delete withdraws a name that is there.
func (r *Rank) Delete(key string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.UnbindLocked(r.Mu.Names.Get("ns", key))
}

// Pin returns a view of the block of a name, in the fastest tier that has it.
func (r *Rank) Pin(key string) *residency.View {
	r.t.Helper()
	b := r.Block(key)
	r.Mu.Lock()
	defer r.Mu.Unlock()
	v := r.PinFastestLocked(b)
	if v == nil {
		must(r.t, key, tiers.ErrNotFound)
	}
	return v
}

// ColdUp reports whether the cold tier takes writes at the moment.
func (r *Rank) ColdUp() bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.ColdUpLocked()
}

// Ask passes the policies a get of a chain, head first.
func (r *Rank) Ask(keys ...string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	for _, k := range keys {
		r.Requests.AddLocked(residency.BlockOf(r.Mu.Names.Get("ns", k)))
	}
	r.Requests.PassLocked(true)
}

// Check recounts everything that the state keeps incrementally, and reports names
// without bytes.
func Check(t testing.TB, s *residency.State) {
	t.Helper()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	CheckLocked(t, s)
}

// CheckLocked is Check for those who hold State.Mu.
func CheckLocked(t testing.TB, s *residency.State) {
	t.Helper()
	if err := s.Mu.Names.Verify(); err != nil {
		t.Error(err)
	}
	var stored, referenced, cold int64
	named := 0
	for id, b := range s.Mu.Blocks {
		if b.Info.ID != id {
			t.Errorf("block %v is filed under %v", b.Info.ID, id)
		}
		if err := b.Verify(); err != nil {
			t.Error(err)
		}
		stored += b.Info.Size
		referenced += b.Info.Size * int64(len(b.Names()))
		named += len(b.Names())
		if len(b.Names()) > 0 && !b.Cold && !b.InAny() {
			t.Errorf("block %v has names and no bytes", id)
		}
		cold += checkBelow(t, s, b)
		for i, m := range s.Mem {
			if b.In(i) && m.Nodes[b.At[i].Node] != b {
				t.Errorf("block %v: node of tier %s is somebody else's", id, m.Stats.Name)
			}
		}
	}
	if s.Count.Stats.BytesStored != stored {
		t.Errorf("%d bytes stored, counted %d", stored, s.Count.Stats.BytesStored)
	}
	if named != s.Mu.Names.Len() || referenced != s.Mu.Names.Referenced() {
		t.Errorf("blocks have %d names and %d bytes referenced, counted %d and %d", named, referenced, s.Mu.Names.Len(), s.Mu.Names.Referenced())
	}
	if s.Cold != nil && cold != s.Cold.Bytes {
		t.Errorf("%d bytes in the cold tier, counted %d", cold, s.Cold.Bytes)
	}
}

// checkBelow checks a block's place in the cold tier's policy, and returns the bytes
// that it takes there.
func checkBelow(t testing.TB, s *residency.State, b *residency.Block) int64 {
	t.Helper()
	at := b.Below
	if s.RanksColdLocked() && at.Ranked != (b.Cold && !at.OtherOwner) || at.Ranked && s.Cold.Nodes[at.Node] != b {
		t.Errorf("block %v: cold %v, %+v", b.Info.ID, b.Cold, at)
		return 0
	}
	if !at.Ranked {
		return 0
	}
	if want := s.Cold.Files.StoredSize(b.Info); at.Bytes != want {
		t.Errorf("block %v takes %d bytes in the cold tier, counted %d", b.Info.ID, want, at.Bytes)
	}
	if at.Held != (s.InNear(b) || b.Loading || b.Needed()) {
		t.Errorf("block %v: in the cold tier it is held: %v", b.Info.ID, at.Held)
	}
	return at.Bytes
}

// NoHoles checks that each name that is there has its parents.
func NoHoles(t testing.TB, s *residency.State) {
	t.Helper()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	var orphans []string
	for _, ns := range s.Mu.Names.Spaces() {
		for _, n := range s.Mu.Names.Space(ns).List() {
			if n.ParentKey() != "" && (n.Parent() == nil || residency.BlockOf(n.Parent()) == nil) {
				orphans = append(orphans, n.Key())
			}
		}
	}
	if len(orphans) > 0 {
		t.Errorf("%d names are there without their parents: %q", len(orphans), orphans[:min(len(orphans), 10)])
	}
}

// Eventually waits for a background worker; its patience is a safety net, not a
// measurement.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 10_000 {
		if ok() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("not seen: %s", what)
}
