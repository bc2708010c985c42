package cascade

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/sharedindex"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
	"cascadekv/internal/shmindex"
	"cascadekv/internal/testing/parttest"
)

// reader opens the shared index as a client does.
func (r *rig) reader() *shmindex.Reader {
	r.t.Helper()
	fd, _, err := r.index.Open()
	if err != nil {
		r.t.Fatal(err)
	}
	defer unix.Close(fd)
	x, err := shmindex.OpenReader(fd)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(x.Close)
	return x
}

// checkIndex compares the shared index with the names there are, each byte that
// it promises included. The caller holds the mutex.
func checkIndex(t *testing.T, s *Store) {
	t.Helper()
	x := s.index.TableLocked()
	if x == nil {
		return
	}
	fd, _, err := x.Table.File()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := shmindex.OpenReader(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	shown := 0
	for _, ns := range s.state.Mu.Names.Spaces() {
		sp := s.state.Mu.Names.Space(ns)
		for n := range sp.Nodes() {
			e, place, ok := r.Lookup(shmindex.FingerprintOf(sp.Name(), n.Key()))
			if ok != (residency.BlockOf(n) != nil) && (ok || x.Filled) {
				t.Errorf("name %q: shown %v, it has a block: %v", n.Key(), ok, residency.BlockOf(n) != nil)
			}
			if !ok || residency.BlockOf(n) == nil {
				continue
			}
			shown++
			if x.Owners[place] != n {
				t.Errorf("name %q: its place is another's", n.Key())
			}
			want := s.index.ShownOfLocked(n)
			if e.UID == want.UID && !stillThere(s, e) { // moved: clients ask until the next sweep
				e.Offset, e.Record = want.Offset, want.Record
			}
			if e != want {
				t.Errorf("name %q: shown as %+v, want %+v", n.Key(), e, want)
			}
			checkShown(t, s, n, e)
		}
	}
	if owners := len(x.Owners) - count(x.Owners, nil); owners != shown {
		t.Errorf("%d names in the index, %d in the store", owners, shown)
	}
	if !r.Alive() || r.Final() != (x.Filled && !s.others.AsksElsewhere()) {
		t.Errorf("alive %v, final %v", r.Alive(), r.Final())
	}
}

func count(owners []*names.Name, what *names.Name) (n int) {
	for _, o := range owners {
		if o == what {
			n++
		}
	}
	return n
}

// stillThere tells whether the record that an entry points to says so, as clients
// ask (docs/format.md §6.2, step 4). A block that was moved twice may have its
// first record's cell again, for another place.
func stillThere(s *Store, e shmindex.Entry) bool {
	region, le := s.state.Shared().Memory.Region(), binary.LittleEndian
	record, data := region[e.Record:], le.Uint64(region[32:])
	return string(record[:4]) == "CBK1" && le.Uint64(record[8:]) == e.UID && data+le.Uint64(record[48:]) == e.Offset
}

// checkShown reads a block where the index says it is.
func checkShown(t *testing.T, s *Store, n *names.Name, e shmindex.Entry) {
	t.Helper()
	if e.Kind != shmindex.InArena {
		return
	}
	bytes := s.state.Shared().Memory.Region()[e.Offset : e.Offset+uint64(e.Size)]
	if !stillThere(s, e) || block.CRC(bytes) != residency.BlockOf(n).Info.CRC || e.CRC != residency.BlockOf(n).Info.CRC || int64(e.Size) != residency.BlockOf(n).Info.Size {
		t.Errorf("name %q: other bytes at %d", n.Key(), e.Offset)
	}
}

// TestIndexIsTheNames: whatever happens to names and blocks, the index has
// what is true when it is over.
func TestIndexIsTheNames(t *testing.T) {
	for name, make := range map[string]func() *rig{
		"one tier":    func() *rig { return newRig(t, 4<<20, false) },
		"cold tier":   func() *rig { return newRig(t, 4<<20, true) },
		"three tiers": func() *rig { return hbmRig(t, true) },
		"disk":        func() *rig { return ladderOf(t, 4<<20, false, false).rig },
		"four tiers":  func() *rig { return ladderOf(t, 4<<20, true, true).rig },
	} {
		t.Run(name, func(t *testing.T) {
			r := make()
			r.t = t
			rng, values := rand.New(rand.NewPCG(21, 22)), map[[2]int][]byte{}
			for i := range 900 {
				if i == 200 {
					r.reader() // on a store that is filled
				}
				randomChange(r, rng, values)
				if i%7 == 0 || i > 880 {
					r.Store.state.Mu.Lock()
					checkIndex(t, r.Store)
					r.Store.state.Mu.Unlock()
				}
				if t.Failed() {
					t.Fatalf("after change %d", i)
				}
			}
			st := r.Stats()
			if st.Tiers[0].Evicted == 0 {
				t.Errorf("nothing was evicted: %+v", st.Tiers)
			}
			checkInvariants(t, r.Store)
			eventually(t, "blocks that were moved are shown where they lie", func() bool {
				r.Sweep()
				r.Store.state.Mu.Lock()
				defer r.Store.state.Mu.Unlock()
				return allShown(r.Store)
			})
		})
	}
}

// allShown tells whether every entry is what it would be if it were written now.
func allShown(s *Store) bool {
	for _, n := range s.index.TableLocked().Owners {
		if n != nil && s.index.ShownOfLocked(n).Kind == shmindex.InArena {
			if e, ok := parttest.EntryOf(s.index.TableLocked().Table, n); !ok || e != s.index.ShownOfLocked(n) {
				return false
			}
		}
	}
	return true
}

// randomChange does one thing to a store. values keeps what was made to be put.
func randomChange(r *rig, rng *rand.Rand, values map[[2]int][]byte) {
	ctx := context.Background()
	space, key := fmt.Sprint("ns", rng.IntN(2)), fmt.Sprint("k", rng.IntN(60))
	e := Entry{Namespace: space, Key: key, Prefix: rng.IntN(8) == 0}
	if rng.IntN(3) == 0 {
		e.Parent = fmt.Sprint("k", rng.IntN(60))
		e.Bound = rng.IntN(4) == 0
	}
	if rng.IntN(6) == 0 {
		e.Expires = r.clock().Add(time.Duration(1+rng.IntN(20)) * time.Second)
	}
	which := [2]int{rng.IntN(20), []int{0, 100, 5000, 60_000, 200_000, 330_000}[rng.IntN(6)]}
	if values[which] == nil {
		values[which] = data(uint64(which[0]), which[1])
	}
	p := values[which]
	switch rng.IntN(16) {
	default:
		_ = r.stage(e, p) // a store may be full
	case 5, 6, 7:
		_, _ = r.Put(ctx, e, p, nil)
	case 8:
		r.Delete(ctx, space, key)
	case 9, 10:
		if v, err := r.Get(ctx, space, key); err == nil {
			v.Release()
		}
	case 11:
		at := time.Time{}
		if rng.IntN(2) == 0 {
			at = r.clock().Add(5 * time.Second)
		}
		r.Expire(ctx, space, key, at)
	case 12:
		r.advance(time.Duration(rng.IntN(3000)) * time.Millisecond)
	case 13:
		if rng.IntN(20) == 0 {
			r.Clear(ctx, space, false)
		}
	case 14:
		if v, err := r.Get(ctx, space, key); err == nil {
			r.write.FinalizeID(v)
			v.Release()
		}
	}
}

// TestIndexGrows: a store with more names than a table has room for gets
// another table, which has them all; the first one says so.
func TestIndexGrows(t *testing.T) {
	r := newRig(t, 64<<20, false)
	first := r.reader()
	const names = sharedindex.IndexNames*2 + 1000
	for i := range names {
		r.put(ns(fmt.Sprint(i)), fmt.Append(nil, i))
	}
	if first.Alive() {
		t.Fatal("one table had room for all: this tests nothing")
	}
	second := r.reader()
	for i := range names {
		if _, _, ok := second.Lookup(shmindex.FingerprintOf("ns", fmt.Sprint(i))); !ok {
			t.Fatalf("name %d is not in the second table", i)
		}
	}
	eventually(t, "misses are final again", second.Final)
	if err := r.Store.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second.Alive() {
		t.Error("alive after the store was closed")
	}
	if _, _, err := r.index.Open(); !errors.Is(err, ErrClosed) {
		t.Errorf("an index of a closed store: %v", err)
	}
}

// TestIndexIsNotAllOfManyRanks: what other ranks may have is not in it, and it
// says so.
func TestIndexIsNotAllOfManyRanks(t *testing.T) {
	r := newRig(t, 8<<20, false)
	x := r.reader()
	if !x.Final() {
		t.Fatal("a rank that is alone has all there is")
	}
	r.Store.state.Mu.Lock()
	r.others.HasParts.Store(true)
	r.index.SetFinalLocked()
	r.Store.state.Mu.Unlock()
	if x.Final() {
		t.Error("misses are final although others have names")
	}
}

// TestIndexWhileStorming: names that are never touched are in the index at every
// instant while others come, go and are overwritten, and an overwritten name is
// never gone.
func TestIndexWhileStorming(t *testing.T) {
	r := newRig(t, 16<<20, false)
	for i := range 50 {
		r.put(ns(fmt.Sprint("steady", i)), data(uint64(i), 1000))
	}
	x := r.reader()
	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(31, uint64(g)))
			for !stop.Load() {
				_ = r.stage(ns(fmt.Sprint("steady", rng.IntN(50))), data(rng.Uint64N(100), 2000))
				key := fmt.Sprint("storm", rng.IntN(50))
				_ = r.stage(ns(key), data(rng.Uint64N(100), 2000))
				r.Delete(context.Background(), "ns", key)
			}
		})
	}
	for i := range 100_000 {
		if _, _, ok := x.Lookup(shmindex.FingerprintOf("ns", fmt.Sprint("steady", i%50))); !ok {
			t.Errorf("look-up %d: a name that is overwritten was gone", i)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
	checkInvariants(t, r.Store)
}

// TestTouchesAreAccesses: what a client tells of its reads counts as hits, and
// keeps what it read from eviction.
func TestTouchesAreAccesses(t *testing.T) {
	r := newRig(t, 8<<20, false, func(o *Options) { o.Policy, o.Capacity = "lru", 10*10_000 })
	for i := range 10 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 10_000))
	}
	x := r.reader()
	touches, err := r.index.Touches(traffic.Sender{Engine: 1, Conn: 2})
	if err != nil {
		t.Fatal(err)
	}
	fd, size := touches.File()
	ring, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ring)
	le, told := binary.LittleEndian, uint64(0)
	touch := func(v uint64) {
		le.PutUint64(ring[128+8*told:], v)
		told++
		le.PutUint64(ring[64:], told)
	}
	for _, i := range []int{0, 2} {
		_, place, ok := x.Lookup(shmindex.FingerprintOf("ns", fmt.Sprint(i)))
		if !ok {
			t.Fatal(i)
		}
		touch(shmindex.Touch(1, place))
	}
	touch(shmindex.Touch(1, 1<<31)) // nonsense
	touch(shmindex.Touch(2, 0))
	touch(1<<64 - 1)
	before := r.Stats().Hits
	next, _, _ := Traffic(r.Store).Since(0, 0)
	r.Sweep()
	if got := r.Stats().Hits - before; got != 2 {
		t.Errorf("%d hits, want 2", got)
	}
	_, _, read := Traffic(r.Store).Since(next, 10)
	if len(read) != 2 || read[1].Kind != traffic.Got || read[1].Engine != 1 || read[1].Conn != 2 || read[1].Keys[0] != block.Fingerprint("ns", "2") {
		t.Errorf("recorded is %+v", read)
	}
	for i := 10; i < 18; i++ {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 10_000))
	}
	var left []string
	for i := range 10 {
		if r.state.ContainsHere("ns", fmt.Sprint(i)) {
			left = append(left, fmt.Sprint(i))
		}
	}
	if !slices.Equal(left, []string{"0", "2"}) {
		t.Errorf("left are %v, want those that were touched", left)
	}
	count := ring[128+8*16384:]
	le.PutUint64(count, 12)     // asked
	le.PutUint64(count[8:], 4)  // found
	le.PutUint64(count[16:], 3) // missed
	copy(count[28:], "ns")
	le.PutUint32(count[24:], 2)
	hits := r.Stats().Hits
	touches.Close()
	if st := r.Stats(); st.Lookups != 12 || st.Found != 4 || st.Misses != 3 || st.Hits != hits {
		t.Errorf("%d look-ups, %d found, %d misses, %d more hits; want 12, 4, 3, 0", st.Lookups, st.Found, st.Misses, st.Hits-hits)
	}
	if r.index.Clients() != 0 {
		t.Error("a ring outlives its client")
	}
}
