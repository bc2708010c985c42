package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/resp"
)

// bytesBelow is what the files below dir take.
func bytesBelow(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // unlinked meanwhile
		}
		if info, err := d.Info(); err == nil {
			n += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// budgeted are chains of blocks for a rank with a budget of 64 MiB.
type budgeted struct {
	name           string
	chains, length int
}

const (
	budget      = 64 << 20
	budgetBlock = 200 << 10
)

func (b budgeted) key(chain, depth int) string { return fmt.Sprintf("%s%d.%d", b.name, chain, depth) }

func (b budgeted) value(chain, depth int) []byte {
	return pad(marks{fmt.Sprint("budget-", b.name, chain), b.length}.value(depth), budgetBlock)
}

func (b budgeted) put(t *testing.T, c *resp.Client) {
	t.Helper()
	for i := range b.chains {
		for d := range b.length {
			args := []string{"CASCADE.PUT", b.key(i, d), string(b.value(i, d))}
			if d > 0 {
				args = append(args, "PARENT", b.key(i, d-1))
			}
			if _, err := c.Do(args...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// count gets all, and returns how many are there and how many of those lie behind
// a block that is not. What is there must be right.
func (b budgeted) count(t *testing.T, c *resp.Client) (present, holes int) {
	t.Helper()
	room := make([]byte, 256<<10)
	for i := range b.chains {
		ended := false
		there := make([]byte, b.length) // of this chain, for the message
		for d := range b.length {
			n, err := c.Get(b.key(i, d), room)
			if err != nil {
				ended, there[d] = true, '.'
				continue
			}
			there[d] = '+'
			if present++; ended {
				holes++
			}
			if string(room[:n]) != string(b.value(i, d)) {
				t.Errorf("wrong bytes of %s", b.key(i, d))
			}
		}
		if bytes.Contains(there, []byte(".+")) {
			t.Logf("blocks of chain %d that are there: %s", i, there)
		}
	}
	return present, holes
}

// TestBudget puts four times what the segments may take: they keep to it, heads
// of chains outlive their ends, and all that is there is right.
func TestBudget(t *testing.T) {
	long(t)
	p := newPlace(t, "16MiB").withLustre()
	r := start(t, p, "--lustre-budget", "64MiB", "--lustre-segment-bytes", "4MiB")
	c := r.dial(t)
	all := budgeted{"c", 32, 40}
	all.put(t, c)
	until(t, "segments within the budget", func() bool { return bytesBelow(t, p.lustre) <= budget })
	present, holes := all.count(t, c)
	s := r.stats(t)
	t.Logf("%d of %d blocks are left, %d behind a hole; segments take %d of %d MiB; tiers %+v",
		present, all.chains*all.length, holes, bytesBelow(t, p.lustre)>>20, budget>>20, s.Tiers)
	if holes > 0 || present < 200 || s.Corrupt > 0 {
		t.Errorf("%d blocks left, %d behind a hole, %d corrupt", present, holes, s.Corrupt)
	}
	wantTier(t, r, "lustre")
	for i := range all.chains {
		for d := range all.length {
			if d%3 > 0 { // most of each segment
				if _, err := c.Do("DEL", all.key(i, d)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	wantMerges(t, r)
}

// wantMerges waits until the rank has merged segments: its log, its statistics and
// the operator's tool tell of it.
func wantMerges(t *testing.T, r *rank) {
	t.Helper()
	r.untilSays(t, `msg="merged segments" rank=0 tier=lustre `)
	tiers := r.stats(t).Tiers
	if m := tiers[len(tiers)-1].Merged; m == nil || m.Merges == 0 || m.Segments == 0 || m.Freed() <= 0 {
		t.Errorf("merges came to %+v", m)
	}
	_, out, _ := finish(t, program("cascade"), "status", "--socket", r.socket)
	wantWords(t, out, "lustre merged ")
}

// TestBudgetOfACampaign has jobs follow each other that never have the same rank
// number, each within the budget: together they keep to it too, and what goes is
// the oldest.
func TestBudgetOfACampaign(t *testing.T) {
	long(t)
	const jobs = 5
	p := newPlace(t, "16MiB").withLustre()
	of := func(n int) budgeted { return budgeted{fmt.Sprintf("job%d-", n), 3, 40} } // 23 MiB
	for n := range jobs {
		if err := os.Remove(p.arena); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		r := start(t, p, "--rank", fmt.Sprint(n), "--lustre-budget", "64MiB", "--lustre-segment-bytes", "4MiB")
		c := r.dial(t)
		of(n).put(t, c)
		if _, err := c.Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
		until(t, "the campaign within its budget", func() bool { return bytesBelow(t, p.lustre) <= budget })
		present, holes := of(n).count(t, c)
		// What a job gave up is there again for the next one as long as its file is,
		// without what came before it, perhaps: only its own chains must be whole.
		oldest, _ := of(0).count(t, c)
		s := r.stats(t)
		t.Logf("job %d: %d MiB, %d blocks of its own, %d of the first job's, estate %+v", n, bytesBelow(t, p.lustre)>>20, present, oldest, s.Orphans)
		if present != 120 || holes > 0 || s.Corrupt > 0 || n == jobs-1 && oldest > 60 {
			t.Errorf("job %d: %d blocks of its own, %d of the first job's, %d behind a hole, %d corrupt", n, present, oldest, holes, s.Corrupt)
		}
		if n < jobs-1 {
			end(t, r)
		}
	}
}

// pad repeats b up to n bytes.
func pad(b []byte, n int) []byte {
	out := make([]byte, 0, n+len(b))
	for len(out) < n {
		out = append(out, b...)
	}
	return out[:n]
}
