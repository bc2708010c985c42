package e2e

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
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

// TestBudget puts four times what the segments may take: they keep to it, heads
// of chains outlive their ends, and all that is there is right.
func TestBudget(t *testing.T) {
	const (
		budget = 64 << 20
		chains = 32
		length = 40
	)
	p := newPlace(t, "16MiB").withLustre()
	r := start(t, p, "--lustre-budget", "64MiB", "--lustre-segment-bytes", "4MiB")
	c := r.dial(t)
	value := func(chain, depth int) []byte { return marks{fmt.Sprint("budget-", chain), length}.value(depth) }
	for i := range chains {
		for d := range length {
			args := []string{"CASCADE.PUT", fmt.Sprintf("c%d.%d", i, d), string(pad(value(i, d), 200<<10))}
			if d > 0 {
				args = append(args, "PARENT", fmt.Sprintf("c%d.%d", i, d-1))
			}
			if _, err := c.Do(args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	until(t, "segments within the budget", func() bool { return bytesBelow(t, p.lustre) <= budget })
	present, holes := 0, 0
	room := make([]byte, 256<<10)
	for i := range chains {
		ended := false
		for d := range length {
			n, err := c.Get(fmt.Sprintf("c%d.%d", i, d), room)
			if err != nil {
				ended = true
				continue
			}
			if present++; ended {
				holes++
			}
			if want := pad(value(i, d), 200<<10); string(room[:n]) != string(want) {
				t.Errorf("wrong bytes of chain %d at %d", i, d)
			}
		}
	}
	s := r.stats(t)
	t.Logf("%d of %d blocks are left, %d behind a hole; segments take %d of %d MiB; tiers %+v", present, chains*length, holes, bytesBelow(t, p.lustre)>>20, budget>>20, s.Tiers)
	if holes > 0 || present < 200 || s.Corrupt > 0 {
		t.Errorf("%d blocks left, %d behind a hole, %d corrupt", present, holes, s.Corrupt)
	}
	wantTier(t, r, "lustre")
	for i := range chains {
		for d := range length {
			if d%3 > 0 { // most of each segment
				if _, err := c.Do("DEL", fmt.Sprintf("c%d.%d", i, d)); err != nil {
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
	until(t, "line of a merge", func() bool { return strings.Contains(r.stderr.String(), `msg="merged segments" rank=0 tier=lustre `) })
	tiers := r.stats(t).Tiers
	if m := tiers[len(tiers)-1].Merged; m == nil || m.Merges == 0 || m.Segments == 0 || m.Freed() <= 0 {
		t.Errorf("merges came to %+v", m)
	}
	_, out, _ := finish(t, program("cascade"), "status", "--socket", r.socket)
	wantWords(t, out, "lustre merged ")
}

// pad repeats b up to n bytes.
func pad(b []byte, n int) []byte {
	out := make([]byte, 0, n+len(b))
	for len(out) < n {
		out = append(out, b...)
	}
	return out[:n]
}
