package cascade

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// hooks are what a test has happen before calls of a cold tier; an error of theirs is the call's.
type hooks struct {
	sync   func(ctx context.Context) error
	link   func() error
	put    func() error
	evict  func() error
	unlink func() error
	reload func() error
	loaded func() // after a Reload
	read   func() // no call of ReadBatch fails for it
}

// readsTake has each read take a while more.
func readsTake(wait time.Duration) hooks {
	return hooks{read: func() { time.Sleep(wait) }}
}

// hooked is the cold tier of a rank of a job. Tests change its hooks while the rank uses it.
type hooked struct {
	tiers.Files
	mu    sync.Mutex
	hooks hooks
}

func (h *hooked) set(to hooks) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hooks = to
}

// now returns the hooks, of which those that do nothing are not nil.
func (h *hooked) now() hooks {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.hooks
	if now.sync == nil {
		now.sync = func(context.Context) error { return nil }
	}
	for _, hook := range []*func(){&now.read, &now.loaded} {
		if *hook == nil {
			*hook = func() {}
		}
	}
	for _, hook := range []*func() error{&now.link, &now.put, &now.evict, &now.unlink, &now.reload} {
		if *hook == nil {
			*hook = func() error { return nil }
		}
	}
	return now
}

// unavailable is a hook of a tier that is out of use.
func unavailable() error { return fmt.Errorf("%w: for the test", tiers.ErrUnavailable) }

func (h *hooked) Reload(ctx context.Context, f tiers.SpilledFile, fn func(tiers.Entry) error) error {
	if err := h.now().reload(); err != nil {
		return err
	}
	defer func() { h.now().loaded() }()
	return h.Files.Reload(ctx, f, fn)
}

func (h *hooked) Sync(ctx context.Context) error {
	if err := h.now().sync(ctx); err != nil {
		return err
	}
	return h.Files.Sync(ctx)
}

func (h *hooked) Link(id block.ID, n block.Name) error {
	if err := h.now().link(); err != nil {
		return err
	}
	return h.Files.Link(id, n)
}

func (h *hooked) Evict(id block.ID) error {
	if err := h.now().evict(); err != nil {
		return err
	}
	return h.Files.Evict(id)
}

func (h *hooked) Unlink(id block.ID, n block.Name) error {
	if err := h.now().unlink(); err != nil {
		return err
	}
	return h.Files.Unlink(id, n)
}

func (h *hooked) Put(ctx context.Context, items ...tiers.Item) error {
	if err := h.now().put(); err != nil {
		return err
	}
	return h.Files.Put(ctx, items...)
}

func (h *hooked) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	h.now().read()
	return h.Files.ReadBatch(ctx, reads)
}

// told is what a rank tells another one that it entrusts with its names of a block.
func (r *jobRank) told(key string) directory.Statement {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.Mu.Names.Get("ns", key)
	st := directory.Statement{Name: n.Record(), Info: residency.BlockOf(n).Info}
	st.Name.Seq = n.Put()
	return st
}

// What was cleared does not come back with what was on its way to a keeper of the bytes.
func TestWhatIsClearedIsNotEntrusted(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("catalogue %v, all %v", local, all), func(t *testing.T) {
				j := &job{t: t, dir: t.TempDir()}
				if local {
					j.local = t.TempDir()
				}
				j.open(3, 8<<20)
				p := data(1, 20<<10)
				if _, err := j.ranks[0].Put(t.Context(), Entry{Namespace: "other", Key: "a"}, p, nil); err != nil {
					t.Fatal(err)
				}
				j.drainAll(0)
				j.ranks[1].putKey(t, "b", p)
				st := j.ranks[1].told("b")
				j.ranks[2].Clear(t.Context(), "ns", all)
				if all {
					if _, err := j.ranks[0].Put(t.Context(), Entry{Namespace: "other", Key: "a"}, p, nil); err != nil {
						t.Fatal(err)
					}
					j.drainAll(0)
				}
				if _, err := j.ranks[1].node.Entrust(t.Context(), 0, []directory.Statement{st}); err != nil {
					t.Fatal(err)
				}
				j.settle()
				for _, r := range j.ranks {
					r.wantMiss(t, "b")
				}
			})
		}
	}
}

// A rank that takes long to sync is none that does not answer, and no caller's deadline ends
// its write.
func TestEntrustingASlowRank(t *testing.T) {
	j := (&job{t: t, dir: t.TempDir(), patient: true}).open(3, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	var ended atomic.Int32
	j.ranks[0].cold.set(hooks{sync: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			ended.Add(1)
			return ctx.Err()
		case <-time.After(1500 * time.Millisecond): // calls have one second
			return nil
		}
	}})
	j.ranks[1].putKey(t, "b", p)
	j.drainAll(1)
	if n := j.ranks[1].node.Stats().Unanswered; n != 0 {
		t.Errorf("%d calls were not answered", n)
	}
	if n := ended.Load(); n != 0 {
		t.Errorf("%d writes of the keeper were ended by whoever asked it", n)
	}
	if n, _ := j.durable(0, 1); n != 1 {
		t.Errorf("%d copies", n)
	}
}

// A name that the keeper could not record is none that it keeps.
func TestWhatIsNotRecordedIsRefused(t *testing.T) {
	j := sharingJob(t, 2, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	j.ranks[0].cold.set(hooks{link: unavailable})
	j.ranks[1].putKey(t, "b", p)
	refused, err := j.ranks[1].node.Entrust(t.Context(), 0, []directory.Statement{j.ranks[1].told("b")})
	if err != nil || len(refused) != 1 {
		t.Errorf("refused %v, %v", refused, err)
	}
}

// A rank whose cold tier refuses what it claimed gives its claim up: others do not wait for it, as they do for one that
// writes. On a machine with other things to do one of several drains may be late by as much.
func TestAClaimThatFailsIsGivenUp(t *testing.T) {
	j := sharingJob(t, 2, 8<<20)
	j.ranks[0].cold.set(hooks{put: unavailable})
	defer j.ranks[0].cold.set(hooks{})
	const tries = 5
	for try := range uint64(tries) {
		p := data(try, 20<<10)
		j.ranks[0].putKey(t, fmt.Sprint("a", try), p)
		if _, err := j.ranks[0].Drain(t.Context()); err == nil {
			t.Fatal("drained")
		}
		j.settle()
		j.ranks[1].putKey(t, fmt.Sprint("b", try), p)
		began := time.Now()
		j.drainAll(1)
		if time.Since(began) < time.Second {
			return
		}
	}
	t.Errorf("each of %d drains waited for a rank that can not write", tries)
}

// keeper has rank 0 write so many blocks in several files, and forget them in memory.
func (j *job) keeper(blocks, size int) *jobRank {
	for i := range blocks {
		j.ranks[0].putKey(j.t, engineKey(0, i), data(uint64(i), size))
		if i%12 == 11 {
			j.drainAll(0)
		}
	}
	j.ranks[0].dropMemory(j.t)
	return j.ranks[0]
}

// A keeper whose files are spilled keeps names all the same, of a block that it has in memory
// and of one that only the catalogue has.
func TestEntrustWithWhatIsSpilled(t *testing.T) {
	j := &job{t: t, dir: t.TempDir(), local: t.TempDir(), segmentBytes: 256 << 10}
	j.open(3, 8<<20)
	const blocks, size = 60, 20 << 10
	keeper := j.keeper(blocks, size)
	keeper.wantAt(t, engineKey(0, 3), data(3, size))
	keeper.space.SpillAll(t.Context())
	b := keeper.told(engineKey(0, 3)).Info.ID
	keeper.state.Mu.Lock()
	spilled := keeper.state.Mu.Blocks[b].From != nil && len(keeper.state.Mu.Blocks) < blocks
	keeper.state.Mu.Unlock()
	if !spilled {
		t.Fatal("nothing is tested")
	}
	j.settle()
	for _, i := range []int{3, 4} {
		j.ranks[1].putKey(t, engineKey(1, i), data(uint64(i), size))
	}
	j.drainAll(1)
	if n, _ := j.durable(1); n != 0 {
		t.Errorf("rank 1 wrote %d blocks", n)
	}
	keeper.dropMemory(t)
	j.settle()
	j.die(1)
	for _, i := range []int{3, 4} {
		for _, r := range []int{0, 2} {
			j.ranks[r].wantAt(t, engineKey(1, i), data(uint64(i), size))
		}
	}
}

// dropMemory evicts all that is clean.
func (r *jobRank) dropMemory(t *testing.T) {
	t.Helper()
	_ = r.Settle(t.Context())
	for range 10000 {
		r.state.Mu.Lock()
		n := r.state.Last().Memory.Usage().Blocks
		d := r.state.Count.Stats.DirtyBlocks
		r.state.Mu.Unlock()
		if n == 0 || d > 0 {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := r.evict.EvictOne(ctx, r.state.Last(), 1); err != nil {
			cancel()
			t.Fatal(err)
		}
		cancel()
	}
}

// restart ends a rank and begins it anew, with nothing in memory.
func (j *job) restart(rank int) {
	j.t.Helper()
	r := j.ranks[rank]
	if err := r.node.Close(); err != nil {
		j.t.Error(err)
	}
	if err := r.Close(context.Background()); err != nil {
		j.t.Error(err)
	}
	j.comeBack(rank)
}

// A keeper that begins anew has the names that it was entrusted with, also those that it had
// as a reader before.
func TestAKeeperBeginsAnew(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("catalogue ", local), func(t *testing.T) {
			t.Parallel()
			j := &job{t: t, dir: t.TempDir()}
			if local {
				j.local = t.TempDir()
			}
			j.open(3, 8<<20)
			p, q := data(1, 20<<10), data(2, 20<<10)
			j.ranks[0].putKey(t, "a", p)
			j.ranks[0].putKey(t, "a2", q)
			j.drainAll(0)
			j.ranks[1].putKey(t, "b", p)
			j.ranks[1].putKey(t, "c", p)
			j.ranks[1].putKey(t, "d", p)
			j.settle()
			for range 4 {
				j.ranks[0].wantAt(t, "b", p) // kept here
				j.ranks[0].wantAt(t, "c", p)
			}
			j.ranks[0].Leases().Renew("ns", "b", "reader", time.Hour)
			j.drainAll(1)
			if !j.ranks[0].leased("b") {
				t.Error("a lease of a reader ended")
			}
			j.ranks[1].putKey(t, "c", q) // overwritten
			j.ranks[1].Delete(t.Context(), "ns", "d")
			j.settle()
			j.drainAll(0)
			j.late.Store(int64(time.Minute)) // no tombstone is remembered
			j.ranks[0].Sweep()
			j.drainAll(1)
			j.ranks[1].dropMemory(t)
			j.settle()
			j.restart(0)
			if n, _ := j.durable(1); n == 0 && !j.ranks[0].state.ContainsHere("ns", "c") && j.ranks[0].others.Catalogued("ns", []string{"c"})[0] == nil {
				t.Error("the keeper has lost a name that it was entrusted with")
			}
			j.die(1)
			for _, r := range []int{0, 2} {
				j.ranks[r].wantAt(t, "b", p)
				j.ranks[r].wantAt(t, "c", q)
				j.ranks[r].wantMiss(t, "d")
			}
		})
	}
}

func (r *jobRank) leased(key string) bool {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	n := r.state.Mu.Names.Get("ns", key)
	return n != nil && n.Leased()
}

// What was evicted from a file that is not spilled is no longer kept, although the index has it
// until the file is merged: nobody gives up its bytes for it.
func TestWhatWasEvictedIsNotKept(t *testing.T) {
	j := threeRanks(t, true)
	keeper := j.keeper(60, 20<<10)
	p := data(1000, 20<<10)
	keeper.putKey(t, "x", p)
	j.drainAll(0)
	id := keeper.told("x").Info.ID
	keeper.dropMemory(t)
	keeper.space.SpillAll(t.Context())
	if !keeper.state.Cold.Spilled() || !keeper.content.State(id)[0].Has() {
		t.Fatal("nothing is tested")
	}
	keeper.Delete(t.Context(), "ns", "x")
	j.drainAll(0)
	if st := keeper.content.State(id)[0]; st.Has() {
		t.Errorf("the bytes are said to be kept at %v", st.Segment)
	}
	j.ranks[1].putKey(t, "y", p)
	j.drainAll(1)
	if n, _ := j.durable(1); n != 1 {
		t.Errorf("rank 1 wrote %d blocks", n)
	}
	j.afterRestart().ranks[2].wantAt(t, "y", p)
}
