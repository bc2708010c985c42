package cascade

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/dht/directory"
)

// afterRestart is a job over a copy of what is in the directory now, as after a power cut:
// nothing is in memory, and no rank ended in good order.
func (j *job) afterRestart() *job {
	j.t.Helper()
	return j.restarted(j.snapshot())
}

// snapshot is a copy of what is in the directory now.
func (j *job) snapshot() (dir string) {
	dir = j.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(j.dir)); err != nil {
		j.t.Error(err)
	}
	return dir
}

// restarted is afterRestart with a snapshot, which it takes.
func (j *job) restarted(dir string) *job {
	j.t.Helper()
	again := &job{t: j.t, dir: dir, segmentBytes: j.segmentBytes, patient: j.patient, virtual: j.virtual}
	if j.local != "" {
		again.local = j.t.TempDir()
	}
	again.dropTokens()
	again.open(len(j.ranks), 8<<20)
	if again.local != "" {
		again.beginCatalogues()
		again.takeAllIn()
	}
	again.settle()
	return again
}

// dropTokens removes the tokens of a snapshot, which are of this process, and that lives.
func (j *job) dropTokens() {
	j.t.Helper()
	tokens, _ := filepath.Glob(filepath.Join(j.dir, "rank*", "alive.*"))
	for _, one := range tokens {
		if err := os.Remove(one); err != nil {
			j.t.Fatal(err)
		}
	}
}

// beginCatalogues has all ranks' catalogues be complete: the parts of ranks that live are none of theirs.
func (j *job) beginCatalogues() {
	j.t.Helper()
	for _, r := range j.ranks {
		if _, err := r.AdoptParts(j.t.Context(), nil); err != nil {
			j.t.Fatal(err)
		}
	}
}

// files lists the segments of a rank.
func (j *job) files(rank int) []string { return segmentsIn(j.dir, rank) }

func segmentsIn(dir string, rank int) []string {
	files, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("rank%03d-*", rank), "agg_*"))
	return files
}

func (j *job) removeFiles(rank int) {
	j.t.Helper()
	for _, f := range j.files(rank) {
		if err := os.Remove(f); err != nil {
			j.t.Fatal(err)
		}
	}
}

// giveUp gives up all that a rank has in its files, as for a budget.
func (r *jobRank) giveUp(t *testing.T) {
	t.Helper()
	r.dropMemory(t)
	r.state.Mu.Lock()
	for _, b := range r.state.Mu.Blocks {
		giveUpLocked(t, r.Store, b)
	}
	r.state.Mu.Unlock()
	flush(t, r.Store)
}

// TestKeeperLosesTheBytes: whatever happens to the files of the rank that keeps the bytes of
// others, what these have in memory is durable again after their next drain, once, and all
// their names are found after a restart.
func TestKeeperLosesTheBytes(t *testing.T) {
	const blocks, size = 20, 20 << 10
	for name, lose := range map[string]func(t *testing.T, j *job){
		"removed": func(_ *testing.T, j *job) { j.removeFiles(0) },
		"given up": func(t *testing.T, j *job) {
			j.ranks[0].giveUp(t)
			j.ranks[0].putKey(t, "more", data(1000, 250<<10)) // into another file, with what was withdrawn
			j.drainAll(0)
			eventually(t, "what holds nothing is removed", func() bool { return len(j.files(0)) == 1 })
		},
		"dead": func(_ *testing.T, j *job) {
			j.die(0)
			j.removeFiles(0)
		},
	} {
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, catalogue %v", name, local), func(t *testing.T) {
				j := threeRanks(t, local)
				for r := range 3 {
					for i := range blocks {
						j.ranks[r].putKey(t, engineKey(r, i), data(uint64(i), size))
					}
					j.drainAll(r)
				}
				if n, _ := j.durable(1, 2); n != 0 {
					t.Fatalf("ranks 1 and 2 wrote %d blocks that rank 0 keeps", n)
				}
				lose(t, j)
				j.late.Store(int64(time.Minute))
				j.drainAll(1, 2)
				if n, _ := j.durable(1, 2); n != blocks {
					t.Errorf("%d blocks are durable again, want %d", n, blocks)
				}
				if name == "removed" {
					j.drainAll(0) // what it has in memory is a copy of theirs
					if n, _ := j.durable(0, 1, 2); n != blocks {
						t.Errorf("%d blocks are durable, want %d", n, blocks)
					}
				}
				again := j.afterRestart()
				for i := range blocks {
					for _, r := range again.ranks {
						r.wantAt(t, engineKey(1, i), data(uint64(i), size))
						r.wantAt(t, engineKey(2, i), data(uint64(i), size))
					}
				}
			})
		}
	}
}

// TestKeeperIsDamaged: bytes that a rank found damaged at the keeper, and puts anew, it writes
// itself: it does not rely on what it could not read.
func TestKeeperIsDamaged(t *testing.T) {
	const blocks, size = 10, 20 << 10
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprintf("catalogue %v", local), func(t *testing.T) {
			j := threeRanks(t, local)
			for i := range blocks {
				j.ranks[0].putKey(t, engineKey(0, i), data(uint64(i), size))
			}
			j.drainAll(0)
			j.ranks[0].dropMemory(t)
			for i := range blocks {
				j.damage(0, data(uint64(i), size))
				if v, err := j.ranks[1].Get(t.Context(), "ns", engineKey(0, i)); err == nil {
					v.Release()
					t.Fatal("a damaged block is read")
				}
				j.ranks[1].putKey(t, engineKey(1, i), data(uint64(i), size))
			}
			j.drainAll(1)
			if n, _ := j.durable(1); n != blocks {
				t.Errorf("%d blocks are durable, want %d", n, blocks)
			}
			j.settle()
			j.ranks[2].putKey(t, engineKey(2, 0), data(0, size))
			j.drainAll(2)
			if n, _ := j.durable(2); n != 0 {
				t.Error("what a rank wrote instead of the keeper is written once more")
			}
			again := j.afterRestart()
			for i := range blocks {
				again.ranks[1].wantAt(t, engineKey(1, i), data(uint64(i), size))
			}
		})
	}
}

// damage changes a byte of a payload in the segments of a rank.
func (j *job) damage(rank int, payload []byte) {
	j.t.Helper()
	for _, f := range j.files(rank) {
		b, err := os.ReadFile(f)
		if err != nil {
			j.t.Fatal(err)
		}
		if at := bytes.Index(b, payload); at >= 0 {
			b[at+len(payload)/2] ^= 1
			if err := os.WriteFile(f, b, 0o600); err != nil {
				j.t.Fatal(err)
			}
			return
		}
	}
	j.t.Fatal("no segment has the payload")
}

// TestKeeperMerges: bytes that the keeper has moved to another file are not written by those
// that rely on it.
func TestKeeperMerges(t *testing.T) {
	const blocks, size = 24, 20 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 256 << 10}
	j.open(3, 8<<20)
	for r := range 3 {
		for i := range blocks {
			j.ranks[r].putKey(t, engineKey(r, i), data(uint64(i), size))
		}
		for i := range blocks { // most of what is in the files is dead later
			if r == 0 {
				j.ranks[r].putKey(t, fmt.Sprint("dead", i), data(uint64(1000+i), size+size/2))
			}
		}
		j.drainAll(r)
	}
	for i := range blocks {
		j.ranks[0].Delete(t.Context(), "ns", fmt.Sprint("dead", i))
	}
	where := func(r int) (paths []string) {
		j.ranks[r].state.Mu.Lock()
		defer j.ranks[r].state.Mu.Unlock()
		for _, b := range j.ranks[r].state.Mu.Blocks {
			if b.From == nil {
				t.Fatalf("rank %d: a block is no copy", r)
			}
			paths = append(paths, b.From.Path)
		}
		return paths
	}
	before := where(1)
	j.ranks[0].putKey(t, "last", data(5000, 200<<10))
	j.drainAll(0)
	j.ranks[0].space.MergeAll(t.Context())
	moved := 0
	eventually(t, "a file of the keeper is gone", func() bool {
		gone, err := j.ranks[1].state.Cold.Files.Gone(t.Context(), before...)
		moved = len(gone)
		return err == nil && len(gone) > 0
	})
	j.settle()
	j.drainAll(1, 2)
	if n, _ := j.durable(1, 2); n != 0 {
		t.Errorf("%d blocks were written again, of which the keeper had moved %d", n, moved)
	}
	for r := 1; r < 3; r++ {
		if gone, err := j.ranks[r].state.Cold.Files.Gone(t.Context(), where(r)...); err != nil || len(gone) > 0 {
			t.Errorf("rank %d: copies of %v, which are gone, %v", r, gone, err)
		}
		if d := j.ranks[r].Stats().DirtyBlocks; d != 0 {
			t.Errorf("rank %d: %d dirty blocks", r, d)
		}
	}
}

// TestAHomeBeginsAnew: of a rank that has spilled files and some that are not, a home that
// begins anew is sent all names.
func TestAHomeBeginsAnew(t *testing.T) {
	const blocks, size = 100, 8 << 10
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 256 << 10, local: t.TempDir()}
	j.open(3, 8<<20)
	for i := range blocks {
		j.ranks[0].putKey(t, engineKey(0, i), data(uint64(i), size))
		if i%25 == 24 {
			j.drainAll(0)
		}
	}
	j.ranks[0].dropMemory(t)
	j.ranks[0].space.SpillAll(t.Context())
	j.ranks[0].state.Mu.Lock()
	n := len(j.ranks[0].state.Mu.Blocks)
	j.ranks[0].state.Mu.Unlock()
	if n == 0 || n == blocks {
		t.Fatalf("%d blocks are not spilled: nothing is tested", n)
	}
	sent := map[string]bool{}
	Local{j.ranks[0].Store}.Names(func(string, string) bool { return true }, func(st directory.Statement) {
		if st.Name.Namespace == "ns" {
			sent[st.Name.Key] = true
		}
	})
	if len(sent) != blocks {
		t.Errorf("%d names are sent, want %d", len(sent), blocks)
	}
}

// takeAllIn has the catalogue of every rank know what all others wrote.
func (j *job) takeAllIn() {
	j.t.Helper()
	for _, r := range j.ranks {
		parts, err := r.others.Parts(j.t.Context())
		if err == nil {
			_, err = r.AdoptParts(j.t.Context(), parts)
		}
		if err != nil {
			j.t.Fatal(err)
		}
	}
}

// TestMergedFilesAreNoLoss: a rank whose catalogue has names in files of another one gets their
// blocks once these were merged, too: at the first attempt, and no loss is counted.
func TestMergedFilesAreNoLoss(t *testing.T) {
	j := threeRanks(t, true)
	for i := range secondBlocks {
		j.ranks[0].putKey(t, sameKey(0, i), data(uint64(i), secondSize))
	}
	j.drainAll(0)
	j.takeAllIn()
	for i := range secondBlocks {
		if i%5 > 0 {
			j.ranks[0].Delete(t.Context(), "ns", sameKey(0, i))
		}
	}
	before := j.files(0)
	j.drainAll(0)
	j.ranks[0].putKey(t, "last", data(10_000, 255<<10)) // ends the file
	j.drainAll(0)
	j.ranks[0].space.MergeAll(t.Context())
	eventually(t, "a file is gone", func() bool {
		_, err := os.Stat(before[0])
		return errors.Is(err, os.ErrNotExist)
	})
	j.settle()
	for i := 0; i < secondBlocks; i += 5 {
		j.ranks[2].wantAt(t, sameKey(0, i), data(uint64(i), secondSize))
	}
	if lost := j.ranks[2].Stats().Losses; len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
}
