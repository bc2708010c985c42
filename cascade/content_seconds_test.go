package cascade

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
)

const secondBlocks, secondSize = 50, 8 << 10

// apart drains a rank that asks no other one.
func (j *job) apart(rank int) {
	j.t.Helper()
	shared := j.ranks[rank].content
	j.ranks[rank].write.Share(nil)
	j.drainAll(rank)
	j.ranks[rank].write.Share(shared)
}

// twice is a job of three ranks of which two wrote the same blocks, not knowing of each other.
func twice(t *testing.T, local bool, key func(rank, i int) string) *job {
	t.Helper()
	j := threeRanks(t, local)
	for r := range 2 {
		for i := range secondBlocks {
			j.ranks[r].putKey(t, key(r, i), data(uint64(i), secondSize))
			if i%25 == 24 {
				j.apart(r)
			}
		}
	}
	if n, _ := j.durable(0, 1); n != 2*secondBlocks {
		t.Fatalf("%d blocks in segments, want all of them twice", n)
	}
	return j
}

// wantTwice checks that ranks serve all names, and miss those that were deleted.
func (j *job) wantTwice(key func(rank, i int) string, deleted ...string) {
	j.t.Helper()
	gone := map[string]bool{}
	for _, k := range deleted {
		gone[k] = true
	}
	for _, one := range j.ranks {
		for r := range 2 {
			for i := range secondBlocks {
				if k := key(r, i); gone[k] {
					one.wantMiss(j.t, k)
				} else {
					one.wantAt(j.t, k, data(uint64(i), secondSize))
				}
			}
		}
	}
}

// cutOff is afterRestart once more has been written: of a file that nobody ended the
// last frame is not believed by all.
func (j *job) cutOff() *job {
	for r := range 2 {
		j.ranks[r].putKey(j.t, fmt.Sprint("more", r, time.Now()), data(uint64(time.Now().UnixNano()), secondSize))
		j.drainAll(r)
	}
	return j.afterRestart()
}

// sizeOf is what the files of ranks take, in bytes.
func (j *job) sizeOf(ranks ...int) (bytes int64) {
	for _, r := range ranks {
		for _, f := range j.files(r) {
			if st, err := os.Stat(f); err == nil {
				bytes += st.Size()
			}
		}
	}
	return bytes
}

// readElsewhere is how many blocks a rank has in memory as it read them elsewhere.
func (r *jobRank) readElsewhere() (n int) {
	r.state.Mu.Lock()
	defer r.state.Mu.Unlock()
	own := fmt.Sprintf("rank%03d-", r.node.Self())
	for _, b := range r.state.Mu.Blocks {
		if b.InAny() && !b.Cold && (b.From == nil || !strings.HasPrefix(b.From.Path, own)) {
			n++
		}
	}
	return n
}

func sameKey(_, i int) string { return fmt.Sprint("k", i) }

// TestSecondCopiesAreGivenUp: of ranks that wrote the same blocks the one of the higher number
// has none in its files after its next merge, the names of both are found, also after a
// restart of all, with and without an index, and a name that is deleted afterwards stays so.
func TestSecondCopiesAreGivenUp(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, how := range []string{"in memory", "cold", "spilled", "spilled, and read from the other"} {
			for name, key := range map[string]func(rank, i int) string{"own keys": engineKey, "same keys": sameKey} {
				spilled := strings.HasPrefix(how, "spilled")
				if spilled && !local || how != "cold" && name == "same keys" {
					continue
				}
				t.Run(fmt.Sprintf("catalogue %v, %s, %s", local, how, name), func(t *testing.T) {
					t.Parallel()
					j := twice(t, local, key)
					if how != "in memory" {
						j.ranks[0].dropMemory(t)
						j.ranks[1].dropMemory(t)
						j.settle()
					}
					j.ranks[1].putKey(t, "last", data(10_000, 255<<10)) // ends the last file
					j.drainAll(1)
					if spilled {
						j.ranks[0].space.SpillAll(t.Context())
						j.ranks[1].space.SpillAll(t.Context())
						if n := len(j.ranks[1].state.Mu.Blocks); n > secondBlocks/2 {
							t.Fatalf("%d blocks are not spilled", n)
						}
					}
					if how != "spilled" && spilled {
						j.settle()
						for i := range secondBlocks {
							j.ranks[0].wantAt(t, key(1, i), data(uint64(i), secondSize))
						}
						if n := j.ranks[0].readElsewhere(); n < secondBlocks/2 {
							t.Fatalf("%d blocks were read from the other rank", n)
						}
					}
					j.ranks[0].space.MergeAll(t.Context())
					eventually(t, "the keeper answers in time", func() bool {
						j.ranks[1].space.MergeAll(t.Context())
						n, _ := j.durable(1)
						return n <= 1
					})
					j.settle()
					if n, _ := j.durable(0); !spilled && n != secondBlocks {
						t.Errorf("%d blocks are left where they stay, want %d", n, secondBlocks)
					}
					if n, _ := j.durable(1); n > 1 {
						t.Errorf("%d blocks are left where they were given up, want the last", n)
					}
					eventually(t, "the files of what was given up are gone", func() bool { return j.sizeOf(1) < 400<<10 })
					j.wantTwice(key)
					j.cutOff().wantTwice(key)
					deleted := key(1, 7)
					j.ranks[0].Delete(t.Context(), "ns", deleted)
					j.settle()
					j.wantTwice(key, deleted)
					j.drainAll(0, 1)
					j.cutOff().wantTwice(key, deleted)
					j.late.Store(int64(2 * time.Minute)) // no tombstone is remembered
					for _, r := range j.ranks {
						r.Sweep()
					}
					j.cutOff().wantTwice(key, deleted)
					for r := range 2 { // with their indexes
						j.restart(r)
					}
					j.wantTwice(key, deleted)
				})
			}
		}
	}
}

// TestNamesThatWereGivenUpStayDeleted: the giver's file, in which the names were recorded, stays for
// what else it holds. A name that is deleted at the keeper does not come back with it, not when
// the keeper has nothing left of it either.
func TestNamesThatWereGivenUpStayDeleted(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, inMemory := range []bool{false, true} {
			t.Run(fmt.Sprintf("catalogue %v, in memory %v", local, inMemory), func(t *testing.T) {
				j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
				if local {
					j.local = t.TempDir()
				}
				j.open(2, 8<<20)
				for r := range 2 {
					j.ranks[r].putKey(t, engineKey(r, 0), data(0, secondSize))
					if r == 1 {
						j.ranks[r].putKey(t, "stays", data(99, 500<<10))
					}
					j.apart(r)
				}
				if !inMemory {
					j.ranks[1].dropMemory(t)
				}
				j.ranks[1].space.MergeAll(t.Context())
				if n, _ := j.durable(0, 1); n != 2 {
					t.Fatalf("%d blocks in segments, want 2", n)
				}
				j.settle()
				for r := range 2 {
					j.ranks[0].Delete(t.Context(), "ns", engineKey(r, 0))
				}
				j.settle()
				j.drainAll(0, 1)
				check := func(j *job) {
					t.Helper()
					for _, r := range j.ranks {
						r.wantAt(t, "stays", data(99, 500<<10))
						r.wantMiss(t, engineKey(0, 0))
						r.wantMiss(t, engineKey(1, 0))
					}
				}
				check(j.cutOff())
				j.late.Store(int64(2 * time.Minute)) // no tombstone is remembered
				for _, r := range j.ranks {
					r.Sweep()
				}
				for i := range 3 { // the keeper's files, with the deletion, go
					j.ranks[0].putKey(t, fmt.Sprint("other", i), data(uint64(1000+i), 900<<10))
					j.drainAll(0)
				}
				j.ranks[0].space.MergeAll(t.Context())
				check(j)
				check(j.cutOff())
				j.restart(1)
				check(j)
			})
		}
	}
}

// steps are the moments of giving up at which a test does something, once: before and after the
// keeper makes the names durable, before the giver withdraws its own and drops
// the first of its blocks, before and after that is durable, and before the merge.
var steps = []string{"asked", "recorded", "kept", "withdrawn", "dropped", "durable", "merged"}

// giveUpWith has rank 1 give up what rank 0 keeps too, and calls fn at a step.
func (j *job) giveUpWith(step string, fn func()) {
	var done, given atomic.Bool
	at := func(now string) {
		if now == step && done.CompareAndSwap(false, true) {
			fn()
		}
	}
	j.ranks[0].cold.set(hooks{
		link: func() error { at("asked"); return nil },
		sync: func(context.Context) error { at("recorded"); return nil },
	})
	j.ranks[1].cold.set(hooks{
		unlink: func() error { at("kept"); return nil },
		evict:  func() error { given.Store(true); at("withdrawn"); return nil },
		sync: func(context.Context) error {
			if given.Load() {
				at("dropped")
			}
			return nil
		},
	})
	j.ranks[1].content.GiveUpSeconds(j.t.Context())
	at("durable")
	j.ranks[1].space.MergeAll(j.t.Context())
	at("merged")
	if !done.Load() {
		j.t.Errorf("nothing was %s", step)
	}
	j.ranks[0].cold.set(hooks{})
	j.ranks[1].cold.set(hooks{})
}

// TestGivingUpIsCutOff: whatever is in the files at any step is all the names and the right bytes,
// and the next run gives up what this one did not.
func TestGivingUpIsCutOff(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, step := range steps {
			t.Run(fmt.Sprintf("catalogue %v, %s", local, step), func(t *testing.T) {
				t.Parallel()
				j := twice(t, local, engineKey)
				j.ranks[1].dropMemory(t)
				var left string
				j.giveUpWith(step, func() { left = j.snapshot() })
				again := j.restarted(left)
				again.wantTwice(engineKey)
				for _, r := range again.ranks {
					r.space.MergeAll(t.Context())
					again.settle()
				}
				if n := again.distinct(); n != secondBlocks {
					t.Errorf("%d blocks in segments after the next merge, want %d", n, secondBlocks)
				}
				again.wantTwice(engineKey)
				again.afterRestart().wantTwice(engineKey)
			})
		}
	}
}

// distinct is how many blocks the ranks keep in their own segments, spilled or not.
func (j *job) distinct() (n int) {
	for _, r := range j.ranks {
		r.state.Mu.Lock()
		for _, b := range r.state.Mu.Blocks {
			if b.Cold && !b.Below.OtherOwner {
				n++
			}
		}
		r.state.Mu.Unlock()
		for _, f := range r.state.Cold.Files.Spilled() {
			n += f.Blocks
		}
	}
	return n
}

// TestTheKeeperDiesMeanwhile: at any step, and the other ranks find all names, then and after a
// restart of all.
func TestTheKeeperDiesMeanwhile(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, step := range steps {
			t.Run(fmt.Sprintf("catalogue %v, %s", local, step), func(t *testing.T) {
				t.Parallel()
				j := twice(t, local, engineKey)
				j.ranks[1].dropMemory(t)
				j.giveUpWith(step, func() { j.world.Kill(0) })
				j.die(0)
				j.settleBut(0)
				for _, r := range j.ranks[1:] {
					for of := range 2 {
						for i := range secondBlocks {
							r.wantAt(t, engineKey(of, i), data(uint64(i), secondSize))
						}
					}
				}
				j.afterRestart().wantTwice(engineKey)
			})
		}
	}
}

// TestAKeeperThatMayBeDead: while a rank does not know whether the keeper of its second copies lives, it keeps them, and it
// gives them up once it does.
func TestAKeeperThatMayBeDead(t *testing.T) {
	j := twice(t, false, engineKey)
	giver := j.ranks[1]
	j.late.Store(int64(time.Minute)) // no ring has changed lately, after which all is stated again
	time.Sleep(1500 * time.Millisecond)
	keeper := dht.Member{Rank: 0, Incarnation: j.members()[0].Incarnation, State: fabric.Suspect}
	giver.node.SetMembers(keeper)
	giver.space.MergeAll(t.Context())
	if n, _ := j.durable(1); n != secondBlocks {
		t.Errorf("%d of %d second copies are left while the keeper may be dead", n, secondBlocks)
	}
	keeper.State = fabric.Alive
	giver.node.SetMembers(keeper)
	eventually(t, "the keeper answers in time", func() bool {
		giver.space.MergeAll(t.Context())
		n, _ := j.durable(1)
		return n == 0
	})
	j.wantTwice(engineKey)
}

// TestSpilledBytesThatGetANameAgain: bytes that lie in a file of which the catalogue alone knows, and that had no name when
// the rank began, have one again. Others that put them know that they are there, and write no second copy.
func TestSpilledBytesThatGetANameAgain(t *testing.T) {
	j, r, _ := spilledBlocks(t)
	p := data(1, reloadedSize)
	if !r.Delete(t.Context(), "ns", "old0") {
		t.Fatal("nothing is deleted")
	}
	j.drainAll(1)
	j.restart(1)
	r = j.ranks[1]
	if _, err := r.AdoptParts(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if at := r.state.Cold.Own(idOf(p))[0]; at == nil {
		t.Fatal("the bytes are in no file that is spilled")
	}
	r.putKey(t, "new", p)
	j.drainAll(1)
	j.ranks[0].putKey(t, "other", p)
	j.drainAll(0)
	if n, _ := j.durable(0); n != 0 {
		t.Error("there is a second copy of the bytes")
	}
	for _, one := range j.ranks {
		one.wantAt(t, "new", p)
		one.wantAt(t, "other", p)
	}
}

// settleBut is settle of those that live.
func (j *job) settleBut(dead fabric.Rank) {
	j.t.Helper()
	all := j.ranks
	j.ranks = nil
	for i, r := range all {
		if fabric.Rank(i) != dead {
			j.ranks = append(j.ranks, r)
		}
	}
	j.settle()
	j.ranks = all
}

// TestChangesWhileGivingUp: what is overwritten or deleted at any step is so afterwards, on all
// ranks and after a restart.
func TestChangesWhileGivingUp(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, step := range steps[1:] { // the first is within the keeper's mutex
			if step == "kept" || step == "withdrawn" { // within the giver's
				continue
			}
			t.Run(fmt.Sprintf("catalogue %v, %s", local, step), func(t *testing.T) {
				j := twice(t, local, engineKey)
				j.ranks[1].dropMemory(t)
				deleted, changed, elsewhere := engineKey(1, 3), engineKey(1, 5), engineKey(1, 6)
				j.giveUpWith(step, func() {
					j.ranks[2].Delete(t.Context(), "ns", deleted)
					j.ranks[1].putKey(t, changed, data(1005, secondSize))
					j.ranks[2].putKey(t, elsewhere, data(1006, secondSize))
				})
				j.settle()
				check := func(j *job) {
					t.Helper()
					for _, r := range j.ranks {
						r.wantMiss(t, deleted)
						r.wantAt(t, changed, data(1005, secondSize))
						r.wantAt(t, elsewhere, data(1006, secondSize))
						for i := range secondBlocks {
							r.wantAt(t, engineKey(0, i), data(uint64(i), secondSize))
						}
					}
				}
				check(j)
				j.drainAll(0, 1, 2)
				j.ranks[1].space.MergeAll(t.Context())
				check(j)
				check(j.cutOff())
			})
		}
	}
}

// TestAGiverKeepsWhatFails: what the keeper does not record, and what can't be withdrawn or
// dropped here, stays here, and is given up later.
func TestAGiverKeepsWhatFails(t *testing.T) {
	for name, fail := range map[string]struct{ keeper, giver hooks }{
		"record":   {keeper: hooks{link: unavailable}},
		"sync":     {keeper: hooks{sync: func(context.Context) error { return unavailable() }}},
		"withdraw": {giver: hooks{unlink: unavailable}},
		"drop":     {giver: hooks{evict: unavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			j := twice(t, false, engineKey)
			j.ranks[0].cold.set(fail.keeper)
			j.ranks[1].cold.set(fail.giver)
			j.ranks[1].content.GiveUpSeconds(t.Context())
			if n, _ := j.durable(1); n != secondBlocks {
				t.Errorf("%d blocks stay, want %d", n, secondBlocks)
			}
			j.ranks[0].cold.set(hooks{})
			j.ranks[1].cold.set(hooks{})
			j.settle()
			j.wantTwice(engineKey)
			j.cutOff().wantTwice(engineKey)
			j.ranks[1].content.GiveUpSeconds(t.Context())
			if n, _ := j.durable(1); n != 1 {
				t.Errorf("%d blocks stay, want that of the cut", n)
			}
			j.wantTwice(engineKey)
			j.cutOff().wantTwice(engineKey)
		})
	}
}

// TestASpilledSecondIsTriedOnceMore: a file that could not be loaded again holds what is to be
// given up until it can.
func TestASpilledSecondIsTriedOnceMore(t *testing.T) {
	j := twice(t, true, engineKey)
	r := j.ranks[1]
	r.dropMemory(t)
	j.settle()
	r.putKey(t, "last", data(10_000, 255<<10)) // ends the last file
	j.drainAll(1)
	r.space.SpillAll(t.Context())
	if n := len(r.state.Mu.Blocks); n > secondBlocks/2 {
		t.Fatalf("%d blocks are not spilled", n)
	}
	r.cold.set(hooks{reload: unavailable})
	r.space.MergeAll(t.Context())
	if n := len(r.content.Seconds()); n < secondBlocks/2 {
		t.Errorf("%d blocks are remembered, want those that are spilled", n)
	}
	r.cold.set(hooks{})
	eventually(t, "all is given up, and forgotten", func() bool {
		r.space.MergeAll(t.Context())
		n, _ := j.durable(1)
		return n <= 1 && len(r.content.Seconds()) == 0
	})
	j.wantTwice(engineKey)
}

// TestBytesThatTheStateDoesNotKnow: a rank finds bytes in a file when it begins that its state leaves aside, for names that lie elsewhere
// may stand for them. Another rank keeps them too. A name that they get here goes to that one, as of bytes that are in memory only.
func TestBytesThatTheStateDoesNotKnow(t *testing.T) {
	j := twice(t, true, engineKey)
	r, p := j.ranks[1], data(0, secondSize)
	r.dropMemory(t)
	r.state.Mu.Lock()
	b := r.state.Mu.Blocks[idOf(p)]
	for _, n := range slices.Clone(b.Names()) {
		r.state.Mu.Names.Retire(n)
	}
	r.state.Cold.LeaveLocked(b, false)
	r.state.Cold.WantedLocked(b.Info.ID)
	r.state.ForgetLocked(b)
	r.state.ApplyLocked()
	r.state.Cold.SpillLocked()
	r.state.Mu.Unlock()
	r.putKey(t, "new", p)
	j.drainAll(1)
	keeper := j.ranks[0]
	keeper.state.Mu.Lock()
	n := keeper.state.Mu.Names.Get("ns", "new")
	keeper.state.Mu.Unlock()
	if n == nil {
		t.Error("the keeper does not have the name")
	}
	for _, one := range j.ranks {
		one.wantAt(t, "new", p)
	}
}
