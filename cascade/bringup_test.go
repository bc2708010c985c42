package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// counted counts the reads of a cold tier.
type counted struct {
	*lustre.Tier
	mu      sync.Mutex
	batches int
	blocks  map[block.ID]int
}

func (c *counted) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	c.mu.Lock()
	c.batches++
	for _, r := range reads {
		c.blocks[r.Pin.Info().ID]++
	}
	c.mu.Unlock()
	return c.Tier.ReadBatch(ctx, reads)
}

// seen returns how many batches there were, and of how many blocks.
func (c *counted) seen() (batches, blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.blocks {
		blocks += n
	}
	return c.batches, blocks
}

// coldRig is a store whose blocks are all in segments, in a file for each
// group, and none in memory.
type coldRig struct {
	*Store
	t     *testing.T
	dir   string
	fs    *vfstest.Fault
	tier  *counted
	keys  []string
	bytes [][]byte
	ctx   context.Context
}

// newColdRig makes a store of one chain of blocks of the given size, so many in
// each file.
func newColdRig(t *testing.T, size int, groups []int, shmBytes int64, l Limits) *coldRig {
	t.Helper()
	r := &coldRig{t: t, dir: t.TempDir(), fs: vfstest.NewFault(vfs.OS{}), ctx: context.Background()}
	fill, err := lustre.Open(lustre.Options{Dir: r.dir, Incarnation: 1, SegmentBytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range groups {
		var items []tiers.Item
		for range n {
			items = append(items, r.link(size))
		}
		if err := fill.Put(r.ctx, items...); err != nil {
			t.Fatal(err)
		}
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := shm.Open(filepath.Join(t.TempDir(), "a.arena"), shmBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WaitReady(r.ctx); err != nil {
		t.Fatal(err)
	}
	tier, err := lustre.Open(lustre.Options{Dir: r.dir, Incarnation: 2, FS: r.fs})
	if err != nil {
		t.Fatal(err)
	}
	r.tier = &counted{Tier: tier, blocks: map[block.ID]int{}}
	r.Store, err = Open(r.ctx, Options{Memory: []tiers.Memory{m}, Cold: r.tier, Limits: l, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(r.ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// link is the chain's next block.
func (r *coldRig) link(size int) tiers.Item {
	i := len(r.keys)
	p := data(uint64(i+1), size)
	name := block.Name{Namespace: "ns", Key: fmt.Sprint("k", i), Seq: uint64(i + 1), Depth: uint32(i)}
	if i > 0 {
		name.Parent = r.keys[i-1]
	}
	r.keys, r.bytes = append(r.keys, name.Key), append(r.bytes, p)
	return tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: int64(size), CRC: block.CRC(p)}, Names: []block.Name{name}, Data: p}
}

// chain gets blocks from, to and checks which came; missing are those that
// should not.
func (r *coldRig) chain(from, to int, missing ...int) {
	r.t.Helper()
	views, err := r.GetBatch(r.ctx, "ns", r.keys[from:to])
	if err != nil {
		r.t.Error(err)
	}
	for i, v := range views {
		r.check(from+i, v, missing...)
	}
}

func (r *coldRig) check(i int, v *View, missing ...int) {
	r.t.Helper()
	want := true
	for _, m := range missing {
		want = want && m != i
	}
	switch {
	case (v != nil) != want:
		r.t.Errorf("block %d is there: %v", i, v != nil)
	case v != nil && !bytes.Equal(v.Bytes(), r.bytes[i]):
		r.t.Errorf("block %d has wrong bytes", i)
	}
	if v != nil {
		v.Release()
	}
}

// one gets one block.
func (r *coldRig) one(i int) {
	r.t.Helper()
	v, err := r.Get(r.ctx, "ns", r.keys[i])
	if err != nil {
		r.t.Errorf("block %d: %v", i, err)
		return
	}
	r.check(i, v)
}

// hang has reads of the file of a group hang until the returned function is
// called.
func (r *coldRig) hang(group int) (answer func()) {
	server := make(chan struct{})
	r.fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: fmt.Sprintf("%06d.bin", group), Block: server})
	answer = sync.OnceFunc(func() {
		r.fs.Clear()
		close(server)
	})
	r.t.Cleanup(answer)
	return answer
}

func (r *coldRig) waiting(i int) int {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	if n := r.state.LookupLocked("ns", r.keys[i]); n != nil && residency.BlockOf(n).Loading {
		return r.load.WaitingColdLocked(residency.BlockOf(n))
	}
	return 0
}

// loading reports whether a block is on its way from the cold tier.
func (r *coldRig) loading(i int) bool {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.LookupLocked("ns", r.keys[i])
	return n != nil && residency.BlockOf(n).Loading
}

// quiet checks that nothing is left of what was under way.
func (r *coldRig) quiet() {
	r.t.Helper()
	eventually(r.t, "nothing is under way", func() bool {
		r.state.Mu.Lock()
		defer r.state.Mu.Unlock()
		busy := 0
		for _, b := range r.state.Mu.Blocks {
			busy += b.Busy
		}
		return busy == 0 && r.state.Count.Stats.Views == 0 && r.load.Idle()
	})
	checkInvariants(r.t, r.Store)
}

// TestChainIsReadTogether: the cold blocks of one request are read with few
// calls of the tier, a single one with one, and then they are in memory.
func TestChainIsReadTogether(t *testing.T) {
	for name, c := range map[string]struct{ size, blocks, batches int }{
		"many small ones": {5000, 2*load.PartBlocks + 10, 1 + 3},
		"large ones":      {1 << 20, 40, 1 + 3},
		"an empty one":    {0, 1, 1},
		"larger than all": {load.PartBytes + 1, 3, 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newColdRig(t, c.size, []int{c.blocks}, 128<<20, Limits{})
			r.one(c.blocks / 2)
			r.chain(0, c.blocks)
			if batches, blocks := r.tier.seen(); batches != c.batches || blocks != c.blocks {
				t.Errorf("%d blocks were read with %d calls, want %d with %d", blocks, batches, c.blocks, c.batches)
			}
			r.chain(0, c.blocks)
			if _, blocks := r.tier.seen(); blocks != c.blocks {
				t.Error("blocks were read again")
			}
			if p := r.Stats().Tiers[0].Promoted; p != uint64(c.blocks) {
				t.Errorf("%d blocks were promoted", p)
			}
			r.quiet()
		})
	}
}

// TestRequestsShareAChain: requests that want blocks of a chain that is on its
// way wait for it, and nothing is read twice.
func TestRequestsShareAChain(t *testing.T) {
	const n = 100
	r := newColdRig(t, 9000, []int{n}, 64<<20, Limits{FetchDeadline: time.Minute})
	answer := r.hang(0)
	var all sync.WaitGroup
	all.Go(func() { r.chain(0, n/2) })
	eventually(t, "the chain is under way", func() bool { return r.waiting(0) == 1 })
	for range 8 {
		all.Go(func() { r.one(10) })
		all.Go(func() { r.chain(5, n) })
	}
	eventually(t, "all wait", func() bool { return r.waiting(10) == 17 && r.waiting(n-1) == 8 })
	answer()
	all.Wait()
	if batches, blocks := r.tier.seen(); batches != 2 || blocks != n {
		t.Errorf("%d reads with %d calls of %d blocks", blocks, batches, n)
	}
	r.quiet()
}

// TestBlockThatComesByAnotherWayIsChecked: while a block is read up the same bytes
// are put under another name, and the two become one. What lies in memory then is
// not what was read, and is compared with its checksum before it is served.
func TestBlockThatComesByAnotherWayIsChecked(t *testing.T) {
	r := newColdRig(t, 9000, []int{1}, 64<<20, Limits{FetchDeadline: time.Minute})
	answer := r.hang(0)
	var all sync.WaitGroup
	all.Go(func() { r.one(0) })
	eventually(t, "the block is under way", func() bool { return r.waiting(0) == 1 })
	stage, err := r.Stage(r.ctx, int64(len(r.bytes[0])))
	if err != nil {
		t.Fatal(err)
	}
	stage.Append(r.bytes[0])
	if err := stage.Commit(r.ctx, Entry{Namespace: "ns", Key: "other"}); err != nil {
		t.Fatal(err)
	}
	v, err := r.Get(r.ctx, "ns", "other")
	if err != nil {
		t.Fatal(err)
	}
	r.write.FinalizeID(v)
	if waiting, in := r.waiting(0), r.resident(0); waiting != 1 || !in {
		t.Fatalf("%d wait; in memory meanwhile: %v", waiting, in)
	}
	v.Bytes()[4444] ^= 1 // as memory fails
	v.Release()
	answer()
	all.Wait()
	if n := r.Stats().Corrupt; n != 1 {
		t.Errorf("%d blocks were corrupt", n)
	}
	r.quiet()
}

// resident tells whether a block is in memory.
func (r *coldRig) resident(i int) bool {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.LookupLocked("ns", r.keys[i])
	return n != nil && residency.BlockOf(n).InAny()
}

// TestDamageIsOneBlocks: a block that is damaged, or not there any more, is a
// miss, and the others of its request are not.
func TestDamageIsOneBlocks(t *testing.T) {
	r := newColdRig(t, 9000, []int{30}, 64<<20, Limits{})
	files, err := filepath.Glob(filepath.Join(r.dir, "*", "*.bin"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	p, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	p[bytes.Index(p, r.bytes[11])+4444] ^= 1
	if err := os.WriteFile(files[0], p, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.tier.Evict(block.Sum(block.Bits128, r.bytes[20])); err != nil {
		t.Fatal(err)
	}
	r.chain(0, 30, 11, 20)
	if n := r.Stats().Corrupt; n != 1 {
		t.Errorf("%d blocks were corrupt", n)
	}
	for _, i := range []int{11, 20} {
		if r.Contains(r.ctx, "ns", r.keys[i]) {
			t.Errorf("block %d is still on the books", i)
		}
	}
	r.chain(0, 30, 11, 20)
	r.quiet()
}

// TestHungFileKeepsItsOwn: of a request whose blocks lie in two files, of which
// one does not answer, the others can be had at once, and the request itself
// gets them when its time is over. The memory of what hangs is kept until it
// answers.
func TestHungFileKeepsItsOwn(t *testing.T) {
	t.Run("others have theirs at once", func(t *testing.T) {
		r := newColdRig(t, 9000, []int{10, 20}, 64<<20, Limits{FetchDeadline: time.Minute})
		answer := r.hang(0)
		var all sync.WaitGroup
		all.Go(func() { r.chain(0, 30) })
		eventually(t, "the chain is under way", func() bool { return r.waiting(0) == 1 })
		for i := 10; i < 30; i++ {
			r.one(i)
		}
		if batches, blocks := r.tier.seen(); batches != 1 || blocks != 30 {
			t.Errorf("%d reads with %d calls", blocks, batches)
		}
		if r.waiting(0) != 1 {
			t.Error("the request has ended")
		}
		answer()
		all.Wait()
		r.quiet()
	})
	t.Run("the request has them in time", func(t *testing.T) {
		r := newColdRig(t, 9000, []int{10, 20}, 64<<20, Limits{FetchDeadline: 2 * time.Second})
		answer := r.hang(0)
		r.chain(0, 30, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
		eventually(t, "the fetch has ended", func() bool { return !r.loading(0) }) // it may have begun after the request
		held := r.state.Last().Memory.Usage()
		if held.Blocks != 20 {
			t.Errorf("%d blocks are in memory", held.Blocks)
		}
		answer()
		eventually(t, "the memory of what hung is free", func() bool { return r.state.Last().Memory.Usage().Used < held.Used })
		eventually(t, "the file is tried again", func() bool {
			v, err := r.Get(r.ctx, "ns", r.keys[0])
			if err != nil {
				return false
			}
			r.check(0, v)
			return true
		})
		r.chain(0, 30)
		r.quiet()
	})
}

// TestNoRoomForAChain: a chain that memory cannot hold while it is read is served all the same, what is
// left of it from memory of its own, without a wait for what the chain itself holds.
func TestNoRoomForAChain(t *testing.T) {
	r := newColdRig(t, 1<<20, []int{40}, 16<<20, Limits{RoomDeadline: time.Hour, FetchDeadline: time.Hour})
	ctx, cancel := context.WithTimeout(r.ctx, patient)
	defer cancel()
	views, err := r.GetBatch(ctx, "ns", r.keys)
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for i, v := range views {
		if v != nil && v.In() == nil {
			own++
		}
		r.check(i, v)
	}
	if own < 20 || own == 40 {
		t.Errorf("%d of 40 blocks were in memory of their own", own)
	}
	r.chain(0, 40)
	r.quiet()
}

// TestLateRoomIsNotTheEnd: a fetch that waited in vain for dirty blocks to be written still has time
// to read.
func TestLateRoomIsNotTheEnd(t *testing.T) {
	r := newColdRig(t, 1<<20, []int{8}, 16<<20, Limits{FetchDeadline: 4 * time.Second}) // the time for room is longer
	server := make(chan struct{})
	r.fs.Add(vfstest.Rule{Op: vfs.OpWrite, Block: server})
	answer := sync.OnceFunc(func() { close(server) })
	defer answer()
	for i := range 15 {
		if _, err := r.Put(r.ctx, ns(fmt.Sprint("dirty", i)), nil, data(uint64(1000+i), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	views, err := r.GetBatch(r.ctx, "ns", r.keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range views {
		if v != nil && v.In() != nil {
			t.Errorf("block %d has found room", i)
		}
		r.check(i, v)
	}
	answer()
	r.quiet()
}

// TestCloseDuringFetches: requests under way end, with what came, when the store
// is closed while the file system hangs.
func TestCloseDuringFetches(t *testing.T) {
	r := newColdRig(t, 9000, []int{10, 20}, 64<<20, Limits{FetchDeadline: 2 * time.Second})
	answer := r.hang(0)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { r.chain(0, 30, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9) })
	}
	eventually(t, "all wait", func() bool { return r.waiting(0) == 4 })
	closed := make(chan error)
	go func() { closed <- r.Close(r.ctx) }()
	all.Wait()
	answer()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, err := r.GetBatch(r.ctx, "ns", r.keys); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestResidentBesidePlainGets: who needs a place in memory gets one, though others fetch the same block again and again who
// can do without while all of memory is held.
func TestResidentBesidePlainGets(t *testing.T) {
	r := newColdRig(t, 1<<20, []int{20}, 16<<20, Limits{RoomDeadline: patient, FetchDeadline: 2 * patient})
	views, err := r.GetBatch(r.ctx, "ns", r.keys[:19])
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if v, err := r.Get(r.ctx, "ns", r.keys[19]); err == nil {
					v.Release()
				}
			}
		})
	}
	got := make(chan *View, 1)
	go func() {
		views, _ := r.GetBatch(r.ctx, "ns", r.keys[19:], Resident)
		got <- views[0]
	}()
	select {
	case v := <-got:
		t.Errorf("while all is held: a place, or a miss: %v", v)
		got <- v
	case <-time.After(200 * time.Millisecond):
	}
	for i, v := range views {
		r.check(i, v)
	}
	r.check(19, <-got)
	close(stop)
	others.Wait()
	r.quiet()
}
