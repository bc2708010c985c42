package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/transfer"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// content is the bytes that a name of a size stands for.
func content(ns, key string, size int) []byte {
	h := fnv.New64a()
	fmt.Fprint(h, ns, "/", key, "/", size)
	rng := rand.NewPCG(h.Sum64(), 0)
	p := make([]byte, 0, size+8)
	for len(p) < size {
		p = binary.LittleEndian.AppendUint64(p, rng.Uint64())
	}
	return p[:size]
}

// shape returns disjoint extents, as many for each block, of blocks of the
// given sizes: in any order, at any alignment.
func shape(rng *rand.Rand, sizes []int) []uint64 {
	each := 1 + rng.IntN(4)
	at := rng.IntN(5000)
	blocks := make([][]uint64, len(sizes))
	for _, i := range rng.Perm(len(sizes)) {
		left := sizes[i]
		for k := range each {
			rest := each - 1 - k // extents that follow, of a byte at least
			n := left - rest
			if rest > 0 {
				n = 1 + rng.IntN(n)
			}
			blocks[i] = append(blocks[i], uint64(at), uint64(n))
			at += n + rng.IntN(300)*rng.IntN(2)
			left -= n
		}
	}
	return slices.Concat(blocks...)
}

// scatter copies p to extents, gather returns what is there.
func scatter(mem []byte, pairs []uint64, p []byte) {
	for i := 0; i < len(pairs); i += 2 {
		p = p[copy(mem[pairs[i]:pairs[i]+pairs[i+1]], p):]
	}
}

func gather(mem []byte, pairs []uint64) (p []byte) {
	for i := 0; i < len(pairs); i += 2 {
		p = append(p, mem[pairs[i]:pairs[i]+pairs[i+1]]...)
	}
	return p
}

// mover is an engine that makes random transfers.
type mover struct {
	*engine
	rng    *rand.Rand
	region string
	ns     string
	jobs   bool
	job    int64
	loaded int
}

// do makes a transfer, at once or as a job, and returns the statuses.
func (m *mover) do(command string, pairs []uint64, options, keys []string) []byte {
	args := append([]string{command, m.region, m.ns, at(pairs...)}, options...)
	if m.jobs {
		m.job++
		args = append(args, "JOB", strconv.FormatInt(m.job, 10))
	}
	rep, err := m.Do(slices.Concat(args, []string{"KEYS"}, keys)...)
	if m.jobs && err == nil && rep.Text() == "QUEUED" {
		rep, err = m.Do("CASCADE.DONE", "5000")
		if err != nil || len(rep.Elems) != 1 || rep.Elems[0].Elems[0].Int != m.job {
			m.t.Errorf("DONE: %+v, %v", rep, err)
			return nil
		}
		rep = rep.Elems[0].Elems[1]
	}
	if err != nil || len(rep.Str) != len(keys) {
		m.t.Errorf("%s: %+v, %v", command, rep, err)
		return nil
	}
	return rep.Str
}

func (m *mover) step() {
	keys := make([]string, 1+m.rng.IntN(6))
	sizes := make([]int, len(keys))
	first := m.rng.IntN(24)
	for i := range keys {
		keys[i] = fmt.Sprint("k", first+i)
		sizes[i] = 8 + (first+i)*12345
		if m.rng.IntN(10) == 0 {
			sizes[i] += 1 + m.rng.IntN(3)
		}
	}
	pairs := shape(m.rng, sizes)
	per := len(pairs) / len(keys)
	if m.rng.IntN(2) == 0 {
		var options []string
		for _, o := range [][]string{{"REPLACE"}, {"CHAIN"}, {"PARENT", "head"}, {"PX", "100000"}, {"PREFIX"}, {"GENERATED"}, {"SHARED", "2"}, {"DUE", "30000"}} {
			if m.rng.IntN(3) == 0 {
				options = append(options, o...)
			}
		}
		for i, k := range keys {
			scatter(m.mem, pairs[i*per:(i+1)*per], content(m.ns, k, sizes[i]))
		}
		for i, s := range m.do("CASCADE.STORE", pairs, options, keys) {
			if s != transfer.Moved {
				m.t.Errorf("%s is not stored: status %d", keys[i], s)
			}
		}
		return
	}
	clear(m.mem)
	for i, s := range m.do("CASCADE.LOAD", pairs, nil, keys) {
		if s == transfer.NotMoved {
			continue
		}
		m.loaded++
		if s != transfer.Moved || !bytes.Equal(gather(m.mem, pairs[i*per:(i+1)*per]), content(m.ns, keys[i], sizes[i])) {
			m.t.Errorf("%s: status %d, but these are not its bytes", keys[i], s)
		}
	}
}

// What is loaded is what was stored under that name with that size, or it is a
// miss: random blocks of random shapes, from several engines, in an arena that
// is too small for them.
func TestTransfersMoveTheRightBytes(t *testing.T) {
	const enough = 30 // blocks that each engine must have loaded
	for name, jobs := range map[string]bool{"at once": false, "as jobs": true} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := newRig(t, 6<<20)
			var movers []*mover
			var wg sync.WaitGroup
			for k := range 3 {
				m := &mover{engine: r.engine(4 << 20), rng: rand.New(rand.NewPCG(seed, uint64(k))), ns: fmt.Sprint("ns", k), jobs: jobs}
				m.region = m.attach()
				movers = append(movers, m)
				wg.Go(func() {
					// Which blocks are evicted is chance, and so is how many loads hit.
					for i := 0; i < 120 || m.loaded < enough && i < 10_000; i++ {
						m.step()
					}
				})
			}
			wg.Wait()
			for _, m := range movers {
				if m.loaded < enough {
					t.Errorf("only %d blocks were loaded", m.loaded)
				}
			}
			if n := r.store.Stats().Tiers[0].Evicted; n == 0 {
				t.Error("nothing was evicted: the arena is too large for this test")
			}
		})
	}
}

func TestNamesOfTransfers(t *testing.T) {
	r := newRig(t, 64<<20)
	e := r.engine(1 << 20)
	copy(e.mem, randomBytes(1, len(e.mem)))
	n := e.attach()
	ask := func(want string, args ...string) {
		t.Helper()
		if got := e.move(args...); got != want {
			t.Errorf("%.60q: %s, want %s", args, got, want)
		}
	}
	three := at(0, 100, 100, 200, 300, 300)
	ask("111", "CASCADE.STORE", n, "ns", three, "PREFIX", "CHAIN", "PARENT", "head", "PX", "60000", "KEYS", "a", "b", "c")
	for key, parent := range map[string]string{"a": "head", "b": "a", "c": "b"} {
		info, ok := r.store.Stat(t.Context(), "ns", key)
		if left := time.Until(info.Expires); !ok || info.Parent != parent || !info.Prefix || left <= 0 || left > time.Minute {
			t.Errorf("%s: %+v", key, info)
		}
	}
	ask("11", "CASCADE.STORE", n, "ns", at(0, 7, 7, 7), "PARENT", "x", "KEYS", "d", "e")
	if d, _ := r.store.Stat(t.Context(), "ns", "d"); d.Parent != "x" || d.Prefix || !d.Expires.IsZero() {
		t.Errorf("d: %+v", d)
	}
	if e, _ := r.store.Stat(t.Context(), "ns", "e"); e.Parent != "" {
		t.Errorf("without CHAIN e has the parent %q", e.Parent)
	}

	// Stored before: not copied again, unless told to or of another size.
	ask("1", "CASCADE.STORE", n, "ns", at(5000, 100), "KEYS", "a")
	ask("1", "CASCADE.LOAD", n, "ns", at(10_000, 100), "KEYS", "a")
	if !bytes.Equal(e.mem[10_000:10_100], e.mem[:100]) {
		t.Error("a was stored again")
	}
	ask("1", "CASCADE.STORE", n, "ns", at(5000, 100), "REPLACE", "KEYS", "a")
	ask("1", "CASCADE.LOAD", n, "ns", at(10_000, 100), "KEYS", "a")
	if !bytes.Equal(e.mem[10_000:10_100], e.mem[5000:5100]) {
		t.Error("REPLACE did not")
	}
	ask("1", "CASCADE.STORE", n, "ns", at(5000, 101), "KEYS", "a")
	ask("0", "CASCADE.LOAD", n, "ns", at(10_000, 100), "KEYS", "a")
	ask("1", "CASCADE.LOAD", n, "ns", at(10_000, 101), "KEYS", "a")
	ask("0100", "CASCADE.LOAD", n, "ns", at(0, 200, 1000, 200, 2000, 300, 3000, 1), "KEYS", "absent", "b", "b", strings.Repeat("long", 300))
	ask("0", "CASCADE.LOAD", n, "other", at(0, 200), "KEYS", "b")

	// Every figure of /metrics counts what moved.
	m := r.srv.adminCounters()
	if got := [4]uint64{m.Stored.Blocks, m.Stored.Bytes, m.Loaded.Blocks, m.Loaded.Bytes}; got != [4]uint64{7, 600 + 14 + 201, 4, 100 + 100 + 101 + 200} {
		t.Errorf("counted: %v", got)
	}
}

func TestTransfersThatCanNotBe(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(1 << 20)
	n := e.attach()
	const mem = 1 << 20
	for name, args := range map[string][]string{
		"no such region":        {"STORE", "9", "ns", at(0, 1), "KEYS", "k"},
		"no region":             {"STORE", "x", "ns", at(0, 1), "KEYS", "k"},
		"outside":               {"STORE", n, "ns", at(mem, 1), "KEYS", "k"},
		"partly outside":        {"STORE", n, "ns", at(0, 1, mem-1, 2), "KEYS", "k"},
		"length 0":              {"STORE", n, "ns", at(5, 0), "KEYS", "k"},
		"sum overflows":         {"STORE", n, "ns", at(math.MaxUint64-5, 10), "KEYS", "k"},
		"length overflows":      {"LOAD", n, "ns", at(10, math.MaxUint64), "KEYS", "k"},
		"negative":              {"LOAD", n, "ns", at(1<<63, 1), "KEYS", "k"},
		"no extents":            {"LOAD", n, "ns", "", "KEYS", "k"},
		"half an extent":        {"LOAD", n, "ns", at(0, 1)[:9], "KEYS", "k"},
		"more keys":             {"LOAD", n, "ns", at(0, 1), "KEYS", "k", "l"},
		"uneven":                {"LOAD", n, "ns", at(0, 1, 1, 1, 2, 1), "KEYS", "k", "l"},
		"overlap":               {"LOAD", n, "ns", at(0, 10, 9, 10), "KEYS", "k", "l"},
		"overlap in a block":    {"LOAD", n, "ns", at(100, 10, 50, 51), "KEYS", "k"},
		"no KEYS":               {"LOAD", n, "ns", at(0, 1), "JOB", "1"},
		"no key":                {"STORE", n, "ns", at(0, 1), "CHAIN", "KEYS"},
		"unknown option":        {"STORE", n, "ns", at(0, 1), "FAST", "1", "KEYS", "k"},
		"option without value":  {"STORE", n, "ns", at(0, 1), "PARENT"},
		"LOAD is no STORE":      {"LOAD", n, "ns", at(0, 1), "CHAIN", "KEYS", "k"},
		"LOAD has no PARENT":    {"LOAD", n, "ns", at(0, 1), "PARENT", "p", "KEYS", "k"},
		"negative job":          {"LOAD", n, "ns", at(0, 1), "JOB", "-1", "KEYS", "k"},
		"job that is no number": {"LOAD", n, "ns", at(0, 1), "JOB", "j", "KEYS", "k"},
		"PX 0":                  {"STORE", n, "ns", at(0, 1), "PX", "0", "KEYS", "k"},
		"empty key":             {"STORE", n, "ns", at(0, 1), "KEYS", ""},
		"long key":              {"STORE", n, "ns", at(0, 1, 1, 1), "KEYS", "k", strings.Repeat("k", 1025)},
		"long namespace":        {"STORE", n, strings.Repeat("n", 1025), at(0, 1), "KEYS", "k"},
		"its own parent":        {"STORE", n, "ns", at(0, 1), "PARENT", "k", "KEYS", "k"},
	} {
		args[0] = "CASCADE." + args[0]
		if rep, err := e.Do(args...); code(err) != "ERR" {
			t.Errorf("%s: %+v, %v", name, rep, err)
		}
	}
	if r.store.Len("ns") != 0 {
		t.Error("something was stored all the same")
	}
	// STOREs may read the same bytes twice.
	if got := e.move("CASCADE.STORE", n, "ns", at(0, 10, 5, 10), "KEYS", "k", "l"); got != "11" {
		t.Errorf("STORE of extents that overlap: %s", got)
	}
}

func TestBlocksBeyondTheLargest(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(600 << 20) // of which no page is touched
	n := e.attach()
	for _, command := range []string{"CASCADE.STORE", "CASCADE.LOAD"} {
		if _, err := e.Do(command, n, "ns", at(0, maxBulk+1), "KEYS", "k"); code(err) != "ERR" {
			t.Errorf("%s: %v", command, err)
		}
	}
	if got := e.move("CASCADE.STORE", n, "ns", at(0, 32<<20, 0, 100), "KEYS", "k", "l"); got != "01" {
		t.Errorf("STORE of a block larger than the arena: %s", got)
	}
}

// A region that is truncated while blocks are copied: what is lost fails, and
// what is said to be loaded, or stored, is right.
func TestRegionIsTruncatedUnderLoad(t *testing.T) {
	r := newRig(t, 16<<20)
	const blocks, size = 16, 128 << 10
	keeper := r.engine(blocks * size)
	nk := keeper.attach()
	var keys []string
	var pairs []uint64
	for i := range blocks {
		keys = append(keys, fmt.Sprint("k", i))
		pairs = append(pairs, uint64(i*size), size)
		copy(keeper.mem[i*size:], content("ns", keys[i], size))
	}
	all := func(command, n, ns string, options ...string) []string {
		return slices.Concat([]string{"CASCADE." + command, n, ns, at(pairs...)}, options, []string{"KEYS"}, keys)
	}
	if got := keeper.move(all("STORE", nk, "ns")...); strings.Contains(got, "0") {
		t.Fatal(got)
	}
	victim := r.engine(blocks * size)
	nv := victim.attach()
	seen := map[byte]int{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Ftruncate(victim.fd, int64(i%3)*blocks*size/2); err != nil {
				t.Error(err)
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	t.Cleanup(end) // before victim.fd may be another file
	for i := 0; i < 20 || (seen[transfer.NotMoved] < 50 || seen[transfer.Moved] < 50) && i < 20_000; i++ {
		for _, args := range [][]string{all("LOAD", nv, "ns"), all("STORE", nv, "torn", "REPLACE")} {
			rep, err := victim.Do(args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range rep.Str {
				seen[s]++
			}
		}
	}
	end()
	if seen[transfer.NotMoved] < 50 || seen[transfer.Moved] < 50 || len(seen) != 2 {
		t.Errorf("statuses: %v", seen)
	}
	if err := unix.Ftruncate(victim.fd, blocks*size); err != nil {
		t.Fatal(err)
	}
	if got := victim.move(all("LOAD", nv, "ns")...); strings.Contains(got, "0") {
		t.Errorf("LOAD once the memory is back: %s", got)
	}
	if !bytes.Equal(victim.mem, keeper.mem) {
		t.Error("other bytes than were stored")
	}
	if n := r.store.Stats().Corrupt; n != 0 {
		t.Errorf("%d blocks were withdrawn", n)
	}
}

func TestNoRoomIsAStatus(t *testing.T) {
	r := newRig(t, 8<<20)
	r.store.SetLimits(cascade.Limits{RoomDeadline: 200 * time.Millisecond})
	e := r.engine(1 << 20)
	n := e.attach()
	// All there is, pinned.
	var keys []string
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		if got := e.move("CASCADE.STORE", n, "ns", at(0, 1<<20), "KEYS", key); got == "0" {
			break
		}
		keys = append(keys, key)
		v, err := r.store.Get(t.Context(), "ns", key)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Release()
	}
	if len(keys) < 3 {
		t.Fatalf("%d blocks fit", len(keys))
	}
	if got := e.move("CASCADE.STORE", n, "ns", at(0, 1<<20, 0, 1<<20, 0, 1<<20), "KEYS", keys[0], "new", keys[1]); got != "101" {
		t.Errorf("STORE without room: %s, want what is stored already and nothing else", got)
	}
}

func TestDamagedBlockIsNotLoaded(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(4 << 20)
	copy(e.mem, randomBytes(1, len(e.mem)))
	n := e.attach()
	if got := e.move("CASCADE.STORE", n, "redis/0", at(0, 1<<20, 1<<20, 1<<20), "KEYS", "good", "bad"); got != "11" {
		t.Fatal(got)
	}
	r.flip("bad")
	if got := e.move("CASCADE.LOAD", n, "redis/0", at(2<<20, 1<<20, 3<<20, 1<<20), "KEYS", "bad", "good"); got != "01" {
		t.Errorf("LOAD: %s", got)
	}
	if !bytes.Equal(e.mem[3<<20:], e.mem[:1<<20]) {
		t.Error("the block beside it is wrong")
	}
	if rep, err := e.Do("EXISTS", "bad", "good"); err != nil || rep.Int != 1 {
		t.Errorf("EXISTS: %+v, %v", rep, err)
	}
	if got, _ := r.srv.jobs.Loaded(); got != 1 {
		t.Errorf("%d blocks count as loaded", got)
	}
	if st := r.store.Stats(); st.Hits != 3 || st.Misses != 0 { // one is flip's
		t.Errorf("%d hits and %d misses are counted of 3", st.Hits, st.Misses)
	}
}

// A block that is damaged in memory comes from the cold tier, if it is there.
func TestDamagedBlockComesFromBelow(t *testing.T) {
	const size = 300_000
	r, _ := newColdRig(t, 4, size)
	e := r.engine(4 * size)
	n := e.attach()
	load := []string{"CASCADE.LOAD", n, "redis/0", at(0, size, size, size), "KEYS", "k1", "k2"}
	if got := e.move(load...); got != "11" {
		t.Fatal(got)
	}
	r.flip("k1")
	clear(e.mem)
	if got := e.move(load...); got != "11" {
		t.Errorf("LOAD: %s", got)
	}
	if want := slices.Concat(content("redis/0", "k1", size), content("redis/0", "k2", size)); !bytes.Equal(e.mem[:2*size], want) {
		t.Error("loaded are other bytes")
	}
	if st := r.store.Stats(); st.Corrupt != 1 || st.Hits != 5 || st.Misses != 0 { // one is flip's
		t.Errorf("%d blocks were withdrawn, %d hits and %d misses are counted of 5", st.Corrupt, st.Hits, st.Misses)
	}
}

// gated is a cold tier whose reads wait for its gate.
type gated struct {
	*lustre.Tier
	mu   sync.Mutex
	gate chan struct{} // nil: open
}

func (g *gated) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return g.Tier.ReadBatch(ctx, reads)
}

// shut makes reads wait until the function it returns is called.
func (g *gated) shut() (open func()) {
	gate := make(chan struct{})
	set := func(to chan struct{}) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.gate = to
	}
	set(gate)
	return sync.OnceFunc(func() {
		set(nil)
		close(gate)
	})
}

// newColdRig is a rig of which k0, k1 … of redis/0 are in the cold tier only.
func newColdRig(t *testing.T, n, size int) (*rig, *gated) {
	t.Helper()
	values := map[string][]byte{}
	for i := range n {
		key := fmt.Sprint("k", i)
		values[key] = content("redis/0", key, size)
	}
	cold := &gated{Tier: leftBehind(t, values)}
	return newRigOver(t, 64<<20, cold), cold
}

// leftBehind is a cold tier with the names of redis/0 that an earlier process
// put there.
func leftBehind(t *testing.T, values map[string][]byte) *lustre.Tier {
	t.Helper()
	o := lustre.Options{Dir: t.TempDir(), Incarnation: 1}
	fill, err := lustre.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	var items []tiers.Item
	for key, p := range values {
		items = append(items, tiers.Item{
			Info:  block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)},
			Names: []block.Name{{Namespace: "redis/0", Key: key, Seq: uint64(len(items) + 1)}}, Data: p,
		})
	}
	if err := fill.Put(t.Context(), items...); err != nil {
		t.Fatal(err)
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	o.Incarnation = 2
	again, err := lustre.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return again
}
