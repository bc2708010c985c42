package cascade

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// sharingJob is a job of ranks that share a directory.
func sharingJob(t *testing.T, ranks int, shmBytes int64) *job {
	return (&job{t: t, dir: t.TempDir()}).open(ranks, shmBytes)
}

// drainAll drains ranks at once.
func (j *job) drainAll(ranks ...int) {
	j.t.Helper()
	var wait sync.WaitGroup
	for _, i := range ranks {
		wait.Go(func() {
			if _, err := j.ranks[i].Drain(j.t.Context()); err != nil {
				j.t.Errorf("rank %d: %v", i, err)
			}
		})
	}
	wait.Wait()
	j.settle()
}

// threeRanks is a job of three ranks with small segments, with catalogues if local.
func threeRanks(t *testing.T, local bool) *job {
	t.Helper()
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 256 << 10, patient: true}
	if local {
		j.local = t.TempDir()
	}
	j.open(3, 8<<20)
	return j
}

// durable is how many blocks the ranks keep in segments together, and what they hold.
func (j *job) durable(ranks ...int) (blocks int, payload int64) {
	for _, i := range ranks {
		u := j.ranks[i].state.Cold.Files.Usage()
		blocks, payload = blocks+u.Blocks, payload+u.Payload
	}
	return blocks, payload
}

func engineKey(rank, i int) string { return fmt.Sprintf("engine%d/%d", rank, i) }

// TestBytesAreKeptOnce: every rank puts the same blocks under keys of its own. After they
// drained, together, each block lies in one rank's segments, and every name finds it.
func TestBytesAreKeptOnce(t *testing.T) {
	const ranks, blocks, size = 4, 60, 16 << 10
	j := sharingJob(t, ranks, 8<<20)
	for r := range ranks {
		for i := range blocks {
			j.ranks[r].putKey(t, engineKey(r, i), data(uint64(i), size))
		}
	}
	j.drainAll(0, 1, 2, 3)
	if n, payload := j.durable(0, 1, 2, 3); n != blocks || payload != blocks*size {
		t.Errorf("%d blocks of %d bytes in segments, want %d of %d", n, payload, blocks, blocks*size)
	}
	relied := uint64(0)
	for _, r := range j.ranks {
		relied += r.Stats().Relied
		if d := r.Stats().DirtyBlocks; d != 0 {
			t.Errorf("rank %d: %d dirty blocks after a drain", r.node.Self(), d)
		}
	}
	if relied != (ranks-1)*blocks {
		t.Errorf("%d blocks are kept by other ranks, want %d", relied, (ranks-1)*blocks)
	}
	for _, r := range j.ranks {
		for of := range ranks {
			for i := range blocks {
				r.wantAt(t, engineKey(of, i), data(uint64(i), size))
			}
		}
	}
	// One engine's names go, and the others' stay.
	for i := range blocks {
		j.ranks[1].Delete(t.Context(), "ns", engineKey(0, i))
	}
	j.settle()
	for i := range blocks {
		j.ranks[2].wantMiss(t, engineKey(0, i))
		j.ranks[2].wantAt(t, engineKey(3, i), data(uint64(i), size))
	}
}

// TestWhatNoRankWritesIsWritten: the rank that claimed the bytes first does not write
// them, or dies before it does.
func TestWhatNoRankWritesIsWritten(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprintf("dies %v", dies), func(t *testing.T) {
			j := sharingJob(t, 3, 8<<20)
			p := data(1, 20<<10)
			j.ranks[0].putKey(t, "a", p)
			j.ranks[1].putKey(t, "b", p)
			j.claim(0)
			if dies {
				j.die(0)
			}
			if _, err := j.ranks[1].Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n, _ := j.durable(1); n != 1 {
				t.Errorf("rank 1 keeps %d blocks in segments, want 1", n)
			}
			j.ranks[2].wantAt(t, "b", p)
			if !dies {
				j.settle()
				j.drainAll(0)
				if n, _ := j.durable(0); n != 0 {
					t.Error("rank 0 wrote what rank 1 keeps")
				}
			}
		})
	}
}

// claim has a rank claim all that it would write, and write none of it.
func (j *job) claim(rank int) {
	j.t.Helper()
	r := j.ranks[rank]
	if err := r.write.FinalizePending(j.t.Context()); err != nil {
		j.t.Fatal(err)
	}
	r.state.Mu.Lock()
	var views []*View
	for _, b := range r.state.Mu.Blocks {
		views = append(views, r.state.PinFastestLocked(b))
	}
	r.state.Mu.Unlock()
	r.content.Divide(j.t.Context(), views, false)
	for _, v := range views {
		v.Release()
	}
}

// TestNamesOfOthersOutliveARank: what a rank was entrusted with is found when the rank that
// put it is gone, and when the one that keeps it began anew.
func TestNamesOfOthersOutliveARank(t *testing.T) {
	j := sharingJob(t, 3, 8<<20)
	p := data(1, 20<<10)
	j.ranks[0].putKey(t, "a", p)
	j.drainAll(0)
	j.ranks[1].putKey(t, "b", p)
	j.drainAll(1)
	if n, _ := j.durable(1); n != 0 {
		t.Fatal("rank 1 wrote what rank 0 keeps")
	}
	j.die(1)
	j.ranks[2].wantAt(t, "b", p)
	j.ranks[0].wantAt(t, "b", p)
}

// TestSharedContentAgainstAModel: ranks put, overwrite, delete and drain the same few
// contents under the same few names at once, and one dies; every get is right or a miss,
// what is there at the end is what was put last, and hardly any bytes are kept twice.
func TestSharedContentAgainstAModel(t *testing.T) {
	const ranks, keys, contents, size = 4, 40, 90, 64 << 10
	j := sharingJob(t, ranks, 4<<20)
	known := map[string]string{}
	for c := range uint64(contents) {
		p := string(data(c, size))
		known[p[:16]] = p
	}
	var wait sync.WaitGroup
	for r := range ranks {
		wait.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(r)))
			for range 400 {
				i := rng.IntN(keys)
				key := engineKey(r, i)
				switch rng.IntN(12) {
				case 0, 1, 2, 3, 4:
					if _, err := j.ranks[r].Put(t.Context(), ns(key), data(uint64(rng.IntN(contents)), size), nil); err != nil && !errors.Is(err, ErrNoRoom) {
						t.Error(err)
					}
				case 5:
					j.ranks[rng.IntN(ranks)].Delete(t.Context(), "ns", key)
				case 6:
					if _, err := j.ranks[r].Drain(t.Context()); err != nil {
						t.Error(err)
					}
				case 7:
					j.ranks[r].space.MergeAll(t.Context())
				default:
					v, err := j.ranks[rng.IntN(ranks)].Get(t.Context(), "ns", key)
					if err != nil {
						continue
					}
					if p := string(v.Bytes()); known[p[:16]] != p {
						t.Errorf("%s: bytes that nobody put", key)
					}
					v.Release()
				}
			}
		})
	}
	wait.Wait()
	last := map[string]uint64{}
	for r := range ranks {
		for i := range keys {
			c := uint64((r + i) % contents)
			last[engineKey(r, i)] = c
			j.ranks[r].putKey(t, engineKey(r, i), data(c, size))
		}
	}
	j.drainAll(0, 1, 2, 3)
	for range 2 {
		for _, r := range j.ranks {
			r.space.MergeAll(t.Context())
		}
		j.settle()
	}
	stored := map[uint64]bool{}
	for _, c := range last {
		stored[c] = true
	}
	// A rank that is too slow to write what it claimed is not waited for: then two do.
	if n, _ := j.durable(0, 1, 2, 3); n < len(stored) || n > len(stored)+len(stored)/8 {
		t.Errorf("%d blocks in segments, want %d", n, len(stored))
	}
	check := func(ranks ...int) {
		t.Helper()
		for key, c := range last {
			for _, r := range ranks {
				j.ranks[r].wantAt(t, key, data(c, size))
			}
		}
	}
	check(0, 1, 2, 3)
	j.die(fabric.Rank(3))
	time.Sleep(10 * time.Millisecond)
	check(0, 1, 2)
}

// TestAKeeperHasPutTheNameItself: with later stamps, for the same bytes, which are stored once
// then, or for other ones, which are what the name stands for from then on.
func TestAKeeperHasPutTheNameItself(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, how := range []string{"dirty", "durable", "spilled"} {
			if how == "spilled" && !local {
				continue
			}
			for _, other := range []bool{false, true} {
				t.Run(fmt.Sprintf("catalogue %v, %s, other bytes %v", local, how, other), func(t *testing.T) {
					j := &job{t: t, dir: t.TempDir(), segmentBytes: 256 << 10}
					if local {
						j.local = t.TempDir()
					}
					j.open(2, 8<<20)
					p, q := data(1, 20<<10), data(2, 20<<10)
					last := p
					if other {
						last = q
					}
					j.ranks[1].putKey(t, "k", p)
					st := j.ranks[1].told("k")
					j.ranks[0].putKey(t, "mine", p)
					j.ranks[0].putKey(t, "k", last)
					if how != "dirty" {
						j.apart(0)
					}
					if how == "spilled" {
						for i := range 2 { // the first ends the file
							j.ranks[0].putKey(t, fmt.Sprint("fills", i), data(uint64(3+i), 240<<10))
							j.drainAll(0)
						}
						j.ranks[0].dropMemory(t)
						j.ranks[0].space.SpillAll(t.Context())
						if j.ranks[0].state.Mu.Blocks[st.Info.ID] != nil {
							t.Fatal("it is not spilled")
						}
					}
					j.drainAll(0)
					refused, err := j.ranks[1].node.Entrust(t.Context(), 0, []directory.Statement{st})
					if err != nil || len(refused) > 0 != other {
						t.Errorf("refused %v, %v", refused, err)
					}
					j.settle()
					j.drainAll(1)
					if n, _ := j.durable(1); n != 0 {
						t.Errorf("rank 1 keeps %d blocks", n)
					}
					for _, again := range []*job{j, j.afterRestart()} {
						for _, r := range again.ranks {
							r.wantAt(t, "k", last)
							r.wantAt(t, "mine", p)
						}
					}
				})
			}
		}
	}
}

// TestReliedPutsHideOlderOnes: a rank has a put of a name in its files, whether or not the catalogue alone knows, and then puts
// other bytes under the name that another rank keeps. The older put is never found again, by the rank itself or one that takes in
// its files, though another name keeps its bytes, and whether the later one stays or is lost.
func TestReliedPutsHideOlderOnes(t *testing.T) {
	old, now := data(1, 9000), data(2, 9000)
	for _, spilled := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("spilled %v, lost %v", spilled, lost), func(t *testing.T) {
				j := threeRanks(t, true)
				r := j.ranks[1]
				j.beginCatalogues()
				r.putKey(t, "x", old)
				r.putKey(t, "same", old)
				for i := range 2 { // ends the file
					r.putKey(t, fmt.Sprint("last", i), data(uint64(100+i), 200<<10))
					j.drainAll(1)
				}
				if spilled {
					r.dropMemory(t)
					r.space.SpillAll(t.Context())
				}
				j.ranks[0].putKey(t, "other", now)
				j.drainAll(0)
				r.putKey(t, "x", now)
				j.drainAll(1)
				if n := r.Stats().Relied; n != 1 {
					t.Fatalf("the rank relies on others for %d blocks", n)
				}
				if err := r.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				if f := r.others.Catalogue.Peek("ns", []string{"x"})[0]; !f.Info.ID.IsZero() {
					t.Errorf("the catalogue has %v of the name", f.Info.ID)
				}
				if lost {
					j.removeFiles(0)
				}
				for _, one := range j.afterRestart().ranks {
					one.wantAt(t, "same", old)
					if lost {
						one.wantMiss(t, "x")
					} else {
						one.wantAt(t, "x", now)
					}
				}
			})
		}
	}
}
