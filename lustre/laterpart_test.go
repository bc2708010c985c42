package lustre

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// TestMergesOfALaterPart: a rank inherits a part of a run that began after its own, and merges it. The copies count
// for all, so that the files of the part go, and what is named there since is found: also when its file is spilled,
// and by the next run.
func TestMergesOfALaterPart(t *testing.T) {
	for name, alias := range map[string]bool{"as it was": false, "under another name": true} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			later := tiers.Part{Rank: 1, Incarnation: 7}
			r.begin(1, 7)
			id, other := r.put("a", 10), r.put("b", 20)
			r.end()
			r.begin(0, 1)
			r.round()
			_, err := r.AdoptOrphan(r.Context(), later, func(tiers.Entry) error { return nil })
			r.must(err)
			r.must(r.Unlink(other, block.Name{Namespace: "ns", Key: "b", Seq: 100}))
			r.must(r.Evict(other))
			r.must(r.Sync(r.Context()))
			r.merge()
			want := "a"
			if alias {
				want = "alias"
				r.must(r.Link(id, block.Name{Namespace: "ns", Key: want, Seq: 200}))
				r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "a", Seq: 300}))
				r.must(r.Sync(r.Context()))
			}
			for i := range 3 {
				r.put("x", uint64(2000+i))
				r.round()
				r.merge()
			}
			r.until("the file of the part is gone", func() bool {
				_, err := os.Stat(filepath.Join(r.dir, segment.Path(later, 0)))
				return os.IsNotExist(err)
			})
			r.wantNames(want)
			r.spillAll()
			r.wantNames(want)
			r.next(9)
			r.wantNames(want)
		})
	}
}

// TestOwnCopiesStay: what a rank has in a file of its own, which only the catalogue knows, is found when a copy of a run that
// began later is gone.
func TestOwnCopiesStay(t *testing.T) {
	r := newRuns(t)
	r.begin(1, 7)
	r.put("a", 10)
	r.end()
	r.begin(0, 1)
	r.put("a", 10)
	r.put("b", 20)
	r.put("c", 30) // the file of a is done
	r.must(r.Sync(r.Context()))
	r.spillAll()
	r.round()
	r.wantNames("a", "b")
	r.must(os.RemoveAll(filepath.Join(r.dir, filepath.Dir(segment.Path(tiers.Part{Rank: 1, Incarnation: 7}, 0)))))
	r.round()
	r.wantNames("a", "b")
}

// TestEvictedThenInherited: a rank evicts its own copy of a block, and inherits one. Once the file of the first is
// gone, the block is found where the other lies: when only the catalogue has that, and by the next run, which has not
// inherited the other's part, whether or not it was left to the catalogue before.
func TestEvictedThenInherited(t *testing.T) {
	for _, own := range []block.Name{{Namespace: "ns", Key: "a", Seq: 10}, {Namespace: "ns", Key: "own", Seq: 50}} {
		for _, spilled := range []bool{false, true} {
			t.Run(fmt.Sprintf("as %s, spilled %v", own.Key, spilled), func(t *testing.T) {
				r := newRuns(t)
				r.begin(1, 7)
				r.put("a", 10)
				r.put("b", 20)
				r.end()
				r.begin(0, 9)
				r.round()
				id := r.putAs(own.Key, own.Seq, "a", 10)
				left := r.files(9)[0]
				r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
				r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "alias", Seq: 110}))
				if own.Key != "a" {
					r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: own.Key, Seq: own.Seq + 1}))
				}
				r.must(r.Evict(id))
				_, err := r.AdoptOrphan(r.Context(), inherited, func(tiers.Entry) error { return nil })
				r.must(err)
				for i := range 6 {
					r.put(fmt.Sprint("x", i), uint64(2000+10*i))
				}
				r.merge()
				r.until("the file of the evicted copy is gone", func() bool {
					_, err := os.Stat(left)
					return os.IsNotExist(err)
				})
				if spilled {
					r.spillAll()
					r.wantNames("a", "b", "x0")
				}
				r.next(12)
				r.round()
				r.wantNames("a", "b", "x0")
				r.next(13)
				r.round()
				r.wantNames("a", "b", "x0")
			})
		}
	}
}

// inherit has the rank take a part over, as a store does: what nobody names is evicted. It returns the names that the
// store is given.
func (r *runs) inherit(p tiers.Part) (keys []string) {
	r.Helper()
	var dead []block.ID
	_, err := r.AdoptOrphan(r.Context(), p, func(e tiers.Entry) error {
		if !e.Info.ID.IsZero() && len(e.Names) == 0 && !e.Wanted {
			dead = append(dead, e.Info.ID)
		}
		for _, n := range e.Names {
			keys = append(keys, n.Key)
		}
		return nil
	})
	r.must(err)
	for _, id := range dead {
		r.must(r.Evict(id))
	}
	return keys
}

// withdraw deletes a name that the catalogue has.
func (r *runs) withdraw(key string, seq uint64) {
	r.Helper()
	_, err := r.Tier.Catalogue().Withdraw(r.Context(), block.Name{Namespace: "ns", Key: key, Seq: seq})
	r.must(err)
}

// TestAliasesOfInheritedBlocks: a block of an inherited part gets another name, and the rank's run ends. The name is
// found once its next run has the part too, also when it has lost its index, and when it is the block's only one.
func TestAliasesOfInheritedBlocks(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, alone := range []bool{false, true} {
			for _, spilled := range []bool{false, true} {
				t.Run(fmt.Sprintf("index lost %v, alone %v, spilled %v", lost, alone, spilled), func(t *testing.T) {
					r := newRuns(t)
					r.leaveAlias(alone)
					if spilled {
						for i := range 3 {
							r.put("x", uint64(120+10*i))
						}
						r.spillAll()
					}
					r.end()
					if lost {
						r.must(os.RemoveAll(r.local))
					}
					r.findAlias()
				})
			}
		}
	}
}

var inherited = tiers.Part{Rank: 1, Incarnation: 7}

// leaveAlias has rank 0 give another name to a block of a part that it inherits, and with alone delete the one it had.
func (r *runs) leaveAlias(alone bool) {
	r.Helper()
	r.begin(1, 7)
	id := r.put("a", 10)
	r.put("b", 20)
	r.end()
	r.begin(0, 9)
	r.round()
	r.inherit(inherited)
	r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
	if alone {
		r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "a", Seq: 110}))
	}
	r.must(r.Sync(r.Context()))
}

// findAlias fails the test unless the next runs of rank 0 find the alias.
func (r *runs) findAlias() {
	r.Helper()
	for incarnation := range uint64(2) {
		r.begin(0, 10+incarnation)
		r.merge()
		r.must(r.Sync(r.Context()))
		r.round()
		r.inherit(inherited)
		r.merge()
		r.wantNames("alias", "b")
		r.end()
	}
}

// TestAliasesAfterAKill: the run is killed before it seals the file of the alias, and keeps its index.
func TestAliasesAfterAKill(t *testing.T) {
	const dir, local = "CASCADE_TEST_ALIASES_DIR", "CASCADE_TEST_ALIASES_LOCAL"
	r := newRuns(t)
	if os.Getenv(dir) != "" { // the run that is killed
		r.dir, r.local = os.Getenv(dir), os.Getenv(local)
		r.leaveAlias(true)
		r.must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	self, err := os.Executable()
	r.must(err)
	cmd := exec.Command(self, "-test.run=^TestAliasesAfterAKill$")
	cmd.Env = append(os.Environ(), dir+"="+r.dir, local+"="+r.local)
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v: %s", err, out)
	}
	r.findAlias()
}

// nameLater has rank 1 put a block as "a", beside "b", and end; name it "alias" in its next run, beside "c", and end; and
// rank 0 begin and delete "a".
func (r *runs) nameLater() (id block.ID) {
	r.Helper()
	r.begin(1, 3)
	id = r.put("a", 10)
	r.put("b", 20)
	r.end()
	r.begin(1, 5)
	r.must(r.Link(id, block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
	r.put("c", 120)
	r.end()
	r.begin(0, 9)
	r.round()
	r.withdraw("a", 200)
	return id
}

// TestNamedByALaterPart: an ended rank gave a block of an earlier run another name. The name it was put under is
// deleted here, and its runs are inherited, oldest first.
func TestNamedByALaterPart(t *testing.T) {
	r := newRuns(t)
	r.nameLater()
	r.must(r.Sync(r.Context()))
	for _, incarnation := range []uint64{3, 5} {
		r.inherit(tiers.Part{Rank: 1, Incarnation: incarnation})
	}
	r.merge()
	r.put("d", 130)
	r.merge()
	r.spillAll()
	r.round()
	r.wantNames("alias", "c", "d")
	r.next(10)
	r.round()
	r.wantNames("alias", "c", "d")
}

// TestDeletedThenInherited: a name that was deleted a moment ago is none of what a part has.
func TestDeletedThenInherited(t *testing.T) {
	for name, sync := range map[string]bool{"before it is durable": false, "once it is": true} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			r.begin(1, 3)
			r.put("a", 10)
			r.put("b", 20)
			r.end()
			r.begin(0, 9)
			r.round()
			r.withdraw("a", 200)
			if sync {
				r.must(r.Sync(r.Context()))
			}
			if got := r.inherit(tiers.Part{Rank: 1, Incarnation: 3}); !slices.Equal(got, []string{"b"}) {
				t.Errorf("the store is given %v", got)
			}
		})
	}
}

// TestCopiesOfOthersAreFoundAgain: this rank stores what an ended one has, under a name of its own, and deletes that.
// When its file goes the other's name leads nowhere, for the index went by this rank's copy; the first look-up is a
// miss, and the next round finds the block in the file in which it always was.
func TestCopiesOfOthersAreFoundAgain(t *testing.T) {
	for name, look := range map[string]func(r *runs){
		"by a look-up": func(r *runs) { r.Tier.Catalogue().Find("ns", []string{"a"}) },
		"by a probe":   func(r *runs) { r.Tier.Catalogue().Probe("ns", []string{"a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuns(t)
			r.loseCopy()
			r.round()
			look(r)
			if got := r.round(); got.Read != 1 {
				t.Errorf("%d files are read anew, want that of the name", got.Read)
			}
			r.wantNames("a", "b", "y", "z")
			look(r)
			if got := r.round(); got.Read != 0 {
				t.Errorf("%d files are read anew", got.Read)
			}
			r.next(10)
			r.round()
			r.wantNames("a", "b", "y", "z")
		})
	}
}

// TestCopiesOfOthersAreFoundByTheNextRun: likewise, though no file went since the run began.
func TestCopiesOfOthersAreFoundByTheNextRun(t *testing.T) {
	r := newRuns(t)
	r.loseCopy()
	r.next(10)
	r.round()
	r.Tier.Catalogue().Find("ns", []string{"a"})
	r.round()
	r.wantNames("a", "b", "y", "z")
}

// loseCopy has rank 0 store a block that rank 1 left, for a name of its own, and delete that, until the file of its
// copy is gone.
func (r *runs) loseCopy() {
	r.Helper()
	r.begin(1, 7)
	r.put("a", 10)
	r.put("b", 20)
	r.end()
	r.loseOwnCopy()
}

// loseOwnCopy has rank 0 begin, and do so with the block that "a" was put as.
func (r *runs) loseOwnCopy() {
	r.Helper()
	r.begin(0, 9)
	r.round()
	id := r.putAs("own", 100, "a", 10) // the same bytes
	left := r.files(9)[0]
	r.must(r.Unlink(id, block.Name{Namespace: "ns", Key: "own", Seq: 110}))
	other := r.put("x", 120)
	r.put("y", 130)
	r.must(r.Unlink(other, block.Name{Namespace: "ns", Key: "x", Seq: 140}))
	r.must(r.Evict(id))
	r.must(r.Evict(other))
	r.merge()
	r.put("z", 150)
	r.merge()
	r.until("the file of the copy is gone", func() bool {
		_, err := os.Stat(left)
		return os.IsNotExist(err)
	})
}

// TestAliasesOfOthersAreFoundAgain: likewise, for a name that another rank, which may still run, has recorded in another file
// than its block: once a look-up has met it, the rounds look for the block in the other files of the part.
func TestAliasesOfOthersAreFoundAgain(t *testing.T) {
	for _, files := range []int{2, 70} { // so many that one round does not read them
		for name, other := range map[string]struct{ ended, moved bool }{
			"of an ended rank":            {ended: true},
			"of a rank that runs":         {},
			"of a block that has moved":   {moved: true},
			"moved, and the rank is over": {ended: true, moved: true},
		} {
			t.Run(fmt.Sprintf("%s, %d files", name, files), func(t *testing.T) {
				r := newRuns(t)
				r.begin(1, 7)
				first := []block.ID{r.put("a", 10), r.put("b", 20)}
				for i := range files {
					r.put(fmt.Sprint("f", i), uint64(1000+i))
					r.put(fmt.Sprint("g", i), uint64(3000+i))
				}
				r.must(r.Link(first[0], block.Name{Namespace: "ns", Key: "alias", Seq: 100}))
				r.must(r.Unlink(first[0], block.Name{Namespace: "ns", Key: "a", Seq: 110}))
				r.put("c", 120)
				if other.moved {
					left := r.files(7)
					r.must(r.Unlink(first[1], block.Name{Namespace: "ns", Key: "b", Seq: 130}))
					r.must(r.Evict(first[1]))
					r.until("the block has moved", func() bool {
						r.merge()
						return len(left) == 0 || !r.there(left[0])
					})
				}
				rank1 := r.Tier
				if r.Tier = nil; other.ended {
					r.must(rank1.Close())
				} else {
					t.Cleanup(func() { r.must(rank1.Close()) })
				}
				r.loseOwnCopy()
				r.round()
				r.Tier.Catalogue().Find("ns", []string{"alias"})
				for range 2 + files/30 {
					r.round()
				}
				r.wantNames("alias", "c", "f0", "y", "z")
			})
		}
	}
}
