package cascade

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// hooked is a cold tier of which a test changes some calls.
type hooked struct {
	tiers.Files
	sync func(ctx context.Context) error
	link func(block.ID, block.Name) error
	put  func() error
	out  func() error // of Evict, before
	drop func() error // of Unlink, before
	load func() error // of Reload, before
}

func (h *hooked) Reload(ctx context.Context, f tiers.SpilledFile, fn func(tiers.Entry) error) error {
	if h.load != nil {
		if err := h.load(); err != nil {
			return err
		}
	}
	return h.Files.Reload(ctx, f, fn)
}

func (h *hooked) Sync(ctx context.Context) error {
	if h.sync != nil {
		if err := h.sync(ctx); err != nil {
			return err
		}
	}
	return h.Files.Sync(ctx)
}

func (h *hooked) Link(id block.ID, n block.Name) error {
	if h.link != nil {
		if err := h.link(id, n); err != nil {
			return err
		}
	}
	return h.Files.Link(id, n)
}

func (h *hooked) Evict(id block.ID) error {
	if h.out != nil {
		if err := h.out(); err != nil {
			return err
		}
	}
	return h.Files.Evict(id)
}

func (h *hooked) Unlink(id block.ID, n block.Name) error {
	if h.drop != nil {
		if err := h.drop(); err != nil {
			return err
		}
	}
	return h.Files.Unlink(id, n)
}

func (h *hooked) Put(ctx context.Context, items ...tiers.Item) error {
	if h.put != nil {
		if err := h.put(); err != nil {
			return err
		}
	}
	return h.Files.Put(ctx, items...)
}

// hook puts a hooked tier in the place of a rank's cold one.
func (r *jobRank) hook() *hooked {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	h := &hooked{Files: r.state.Cold.Files}
	r.state.Cold.Files = h
	return h
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
	j := sharingJob(t, 3, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	var ended atomic.Int32
	j.ranks[0].hook().sync = func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			ended.Add(1)
			return ctx.Err()
		case <-time.After(600 * time.Millisecond):
			return nil
		}
	}
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
	j.ranks[0].hook().link = func(block.ID, block.Name) error { return fmt.Errorf("%w: for the test", tiers.ErrUnavailable) }
	j.ranks[1].putKey(t, "b", p)
	refused, err := j.ranks[1].node.Entrust(t.Context(), 0, []directory.Statement{j.ranks[1].told("b")})
	if err != nil || len(refused) != 1 {
		t.Errorf("refused %v, %v", refused, err)
	}
}

// A rank whose cold tier refuses what it claimed gives its claim up: others do not wait for it.
func TestAClaimThatFailsIsGivenUp(t *testing.T) {
	j := sharingJob(t, 2, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.ranks[0].hook().put = func() error { return fmt.Errorf("%w: for the test", tiers.ErrUnavailable) }
	if _, err := j.ranks[0].Drain(t.Context()); err == nil {
		t.Fatal("drained")
	}
	j.settle()
	j.ranks[1].putKey(t, "b", p)
	began := time.Now()
	j.drainAll(1)
	if took := time.Since(began); took > time.Second {
		t.Errorf("a drain waited %v for a rank that can not write", took)
	}
	j.ranks[0].state.Cold.Files.(*hooked).put = nil
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
	began := time.Now()
	j.drainAll(1)
	if n, _ := j.durable(1); n != 0 || time.Since(began) > time.Second {
		t.Errorf("rank 1 wrote %d blocks, after %v", n, time.Since(began))
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
