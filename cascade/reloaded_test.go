package cascade

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/coldspace"
	"cascadekv/dht/directory"
	"cascadekv/tiers"
)

const reloadedSize = 60_000

// spilledBlocks is a job of three ranks of which the second has four blocks, old0 to old3, in a file that only its catalogue knows.
func spilledBlocks(t *testing.T) (j *job, keeper *jobRank, file tiers.SpilledFile) {
	t.Helper()
	j = threeRanks(t, true)
	j.beginCatalogues()
	r := j.ranks[1]
	for i := range 4 {
		r.putKey(t, fmt.Sprint("old", i), data(uint64(1+i), reloadedSize))
	}
	for i := range 2 { // ends the file
		r.putKey(t, fmt.Sprint("last", i), data(uint64(100+i), 30<<10))
		j.drainAll(1)
	}
	r.dropMemory(t)
	r.space.SpillAll(t.Context())
	files := r.space.LookSpilled()
	if len(files) == 0 || files[0].Blocks < 4 {
		t.Fatalf("spilled: %+v", files)
	}
	return j, r, files[0]
}

// endOld deletes old0 to old3.
func (j *job) endOld() {
	for i := range 4 {
		j.ranks[1].Delete(j.t.Context(), "ns", fmt.Sprint("old", i))
	}
	j.drainAll(1)
}

// TestEntrustedWhileAFileIsLoaded: a rank is entrusted with a name for a block of a file that it is loading again. The name is
// found as long as it stands, whether the block had another name when the load began, which is deleted then, or none.
func TestEntrustedWhileAFileIsLoaded(t *testing.T) {
	for _, named := range []bool{false, true} {
		for _, when := range []string{"before", "made durable", "loaded"} {
			t.Run(fmt.Sprintf("named %v, %s", named, when), func(t *testing.T) {
				j, r, file := spilledBlocks(t)
				if !named {
					j.endOld()
				}
				p := data(1, reloadedSize)
				entrust := func() {
					j.ranks[0].putKey(t, "other", p)
					if _, err := j.ranks[0].Drain(t.Context()); err != nil {
						t.Error(err)
					}
				}
				load := func() { r.space.Reload(context.Background(), file, coldspace.Stay) }
				switch when {
				case "before":
					entrust()
					load()
				case "made durable":
					var once sync.Once
					var loads sync.WaitGroup
					r.cold.set(hooks{sync: func(context.Context) error {
						once.Do(func() { loads.Go(load) })
						return nil
					}})
					entrust()
					loads.Wait()
				case "loaded":
					r.cold.set(hooks{loaded: entrust})
					load()
				}
				r.cold.set(hooks{})
				j.settle()
				if named {
					j.endOld()
				}
				r.space.MergeAll(t.Context())
				j.settle()
				j.ranks[0].dropMemory(t)
				j.ranks[2].wantAt(t, "other", p)
				for _, one := range j.afterRestart().ranks {
					one.wantAt(t, "other", p)
				}
			})
		}
	}
}

// TestWhatALoadEvictsIsStated: a block without a name that a load of its file evicts is not stated to its homes any more: nobody
// relies on this rank for it.
func TestWhatALoadEvictsIsStated(t *testing.T) {
	j, r, file := spilledBlocks(t)
	j.endOld()
	r.space.Reload(t.Context(), file, coldspace.Stay)
	r.content.Publish()
	j.settle()
	for i := range 4 {
		key := directory.ContentKey(idOf(data(uint64(1+i), reloadedSize)))
		if found := j.ranks[0].node.Locate(t.Context(), directory.Contents, []string{key})[0]; len(found) > 0 {
			t.Errorf("block %d is at %v", i, found[0].Segment)
		}
	}
}

// TestASecondKeeper: a keeper gives up a block, and withdraws its names. Who has a copy has another rank record its names, which counts also
// for who takes in the files of both.
func TestASecondKeeper(t *testing.T) {
	j := threeRanks(t, true)
	j.beginCatalogues()
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	j.ranks[2].putKey(t, "b", p)
	j.apart(2)
	j.ranks[1].putKey(t, "x", p)
	j.drainAll(1)
	j.ranks[0].giveUp(t)
	j.ranks[0].putKey(t, "more", data(1000, 250<<10)) // into another file, with what was withdrawn
	j.drainAll(0)
	eventually(t, "what holds nothing is removed", func() bool { return len(j.files(0)) == 1 })
	j.late.Store(int64(time.Minute))
	j.drainAll(1)
	if n, _ := j.durable(1); n != 0 {
		t.Fatalf("rank 1 has written %d blocks", n)
	}
	j.settle()
	again := &job{t: t, dir: j.snapshot(), segmentBytes: j.segmentBytes, patient: true, local: t.TempDir()}
	again.dropTokens()
	one := again.open(1, 8<<20).ranks[0]
	parts, err := one.Parts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.AdoptParts(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	one.wantAt(t, "b", p)
	one.wantAt(t, "x", p)
}

// TestEntrustedWithWhatTheStateDoesNotKnow: a rank is entrusted with a name for a block in a file of its own that it kept for names elsewhere
// alone. Other ranks find the name once the block has moved.
func TestEntrustedWithWhatTheStateDoesNotKnow(t *testing.T) {
	j, r, file := spilledBlocks(t)
	r.space.Reload(t.Context(), file, coldspace.Stay)
	p := data(1, reloadedSize)
	r.state.Mu.Lock()
	r.state.Cold.LeaveLocked(r.state.Mu.Blocks[idOf(p)], false)
	r.state.Cold.WantedLocked(idOf(p))
	r.state.Mu.Unlock()
	j.endOld()
	for i := range 4 { // another file that only the catalogue knows
		r.putKey(t, fmt.Sprint("more", i), data(uint64(200+i), reloadedSize))
		j.drainAll(1)
	}
	r.dropMemory(t)
	r.space.SpillAll(t.Context())
	if r.state.Mu.Blocks[idOf(p)] != nil || !r.state.Cold.Spilled() {
		t.Fatal("the state knows the block, or all of the files")
	}
	j.settle()
	j.ranks[0].putKey(t, "other", p)
	j.drainAll(0)
	if n, _ := j.durable(0); n != 0 {
		t.Fatalf("rank 0 has written %d blocks", n)
	}
	for i := range 12 {
		r.putKey(t, fmt.Sprint("garbage", i), data(uint64(300+i), reloadedSize))
		j.drainAll(1)
		r.Delete(t.Context(), "ns", fmt.Sprint("garbage", i))
	}
	j.drainAll(1)
	before := len(j.files(1))
	r.space.MergeAll(t.Context())
	eventually(t, "files are merged", func() bool { return len(j.files(1)) < before })
	j.settle()
	j.ranks[0].dropMemory(t)
	for range 2 { // the first may find that the place has gone
		j.ranks[2].wantAt(t, "other", p)
		j.ranks[2].dropMemory(t)
	}
}
