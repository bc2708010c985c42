package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cascadekv/tiers"
)

// TestCatalogue has three ranks leave a campaign. One rank of another number
// serves all of it from its index, twice, reading footers the first time only,
// and once more when the index is gone; then two ranks share it.
func TestCatalogue(t *testing.T) {
	long(t)
	j := startJob(t, 3, "32MiB", true)
	all := []marks{{"of-0", 20}, {"of-1", 20}, {"of-2", 20}}
	for i, c := range j.clients() {
		all[i].put(t, c)
	}
	for i := range j.ranks {
		end(t, j.ranks[i])
		j.ranks[i].wantNoArena(t)
	}

	p := newPlace(t, "32MiB")
	p.lustre = j.lustre
	for turn, read := range []bool{true, false, true} {
		if turn == 2 {
			if err := os.RemoveAll(filepath.Join(p.dir, "index")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(p.arena); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		r := start(t, p, "--rank", "9")
		for _, m := range all {
			m.everywhere(t, r.dial(t))
		}
		s := r.stats(t)
		if c := index(t, s.Catalogue); (c.Read > 0) != read || c.Parts != 3 || s.Recovered.Blocks != 0 {
			t.Errorf("start %d: recovered %d blocks, index %+v", turn, s.Recovered.Blocks, c)
		}
		if s.DirtyBlocks != 0 {
			t.Errorf("start %d: %d blocks that were only read are to be written", turn, s.DirtyBlocks)
		}
		end(t, r)
	}

	next := newJob(t, "32MiB", false)
	next.lustre = j.lustre
	for i := range 2 {
		next.add(i)
	}
	next.agree(2)
	for _, m := range all {
		m.everywhere(t, next.clients()...)
	}
	parts := 0
	for _, r := range next.ranks {
		parts += index(t, r.stats(t).Catalogue).Parts
	}
	if parts != 1 { // that of rank 2: the others recovered what they left themselves
		t.Errorf("the next job took %d parts in", parts)
	}
}

// end has a rank drain and end.
func end(t *testing.T, r *rank) {
	t.Helper()
	r.signal(t, syscall.SIGTERM)
	if status := r.status(t); status != 0 {
		t.Fatalf("a rank ends with %d: %s", status, tailOf(r.stderr.String()))
	}
}

// index is a rank's index of what others left, which must work.
func index(t *testing.T, c *tiers.CatalogueState) *tiers.CatalogueState {
	t.Helper()
	if c == nil || c.Broken != "" {
		t.Fatalf("index %+v", c)
	}
	return c
}

// TestWithoutIndex: a rank without an index, because it shall have none or can
// have none, serves what others left all the same.
func TestWithoutIndex(t *testing.T) {
	p := newPlace(t, "32MiB").withLustre()
	left := marks{"left", 20}
	r := start(t, p)
	left.put(t, r.dial(t))
	end(t, r)
	file := filepath.Join(p.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, flag := range map[string]string{"none": "off", "none possible": file} {
		p.wantNoArena(t)
		r := start(t, p, "--rank", "9", "--lustre-index", flag)
		left.everywhere(t, r.dial(t))
		if s := r.stats(t); s.Catalogue != nil {
			t.Errorf("%s: %+v", name, s.Catalogue)
		}
		end(t, r)
		if warned := r.stderr.Has("no catalogue index"); warned != (flag == file) {
			t.Errorf("%s: it said: %s", name, tailOf(r.stderr.String()))
		}
	}
}
