package segment

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// TestContents: what counts of a segment of another rank, open and sealed, is
// told with places that lead to right bytes, and the store knows no more than
// before.
func TestContents(t *testing.T) {
	dir := t.TempDir()
	other := openStore(t, rankOptions(dir, 1, 7))
	var items []tiers.Item
	for n := range 5 {
		it := testItem(uint64(n), 5000+n, testName(fmt.Sprint(n), uint64(10+n)))
		put(t, other, it)
		items = append(items, it)
	}
	if err := other.Unlink(block.ID{}, testName("0", 100)); err != nil {
		t.Fatal(err)
	}
	if err := other.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, rankOptions(dir, 0, 8))
	one := tiers.Part{Rank: 1, Incarnation: 7}
	listing, err := s.Files(t.Context(), one)
	numbers := listing.Numbers
	if err != nil || len(numbers) != 1 {
		t.Fatalf("files %v, %v", numbers, err)
	}
	check := func(c Contents, sealed bool) {
		t.Helper()
		if c.Sealed != sealed || c.Unchanged || c.Damage != nil || len(c.Blocks) != 5 || len(c.Names) != 6 {
			t.Fatalf("%+v", c)
		}
		for i, b := range c.Blocks {
			got := make([]byte, b.Info.Size)
			if err := s.ReadSegment(t.Context(), b.At, b.Info, got); err != nil || !bytes.Equal(got, items[i].Data) {
				t.Errorf("block %d: %v", i, err)
			}
			if r := c.Names[i]; r.ID != b.Info.ID || r.Dropped || r.Name != items[i].Names[0] {
				t.Errorf("name %d: %+v", i, r)
			}
		}
		if r := c.Names[5]; !r.Dropped || r.Name.Key != "0" || r.Name.Seq != 100 || r.ID != (block.ID{}) {
			t.Errorf("the withdrawn name: %+v", r)
		}
	}
	open, err := s.Contents(t.Context(), one, numbers[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	check(open, false)
	if c, err := s.Contents(t.Context(), one, numbers[0], open.Size); err != nil || !c.Unchanged || len(c.Blocks) != 0 {
		t.Errorf("as large as it was: %+v, %v", c, err)
	}
	closeStore(t, other)
	sealed, err := s.Contents(t.Context(), one, numbers[0], open.Size)
	if err != nil {
		t.Fatal(err)
	}
	check(sealed, true)
	if len(s.blocks) != 0 || len(s.Store.files) != 0 {
		t.Errorf("the store knows %d blocks and %d files", len(s.blocks), len(s.Store.files))
	}

	_, err = s.Contents(t.Context(), one, numbers[0]+1, 0)
	wantErr(t, "no such file", err, tiers.ErrNotFound)
	if l, err := s.Files(t.Context(), tiers.Part{Rank: 1, Incarnation: 6}); err != nil || len(l.Numbers) != 0 || !l.Ended {
		t.Errorf("no such directory: %v, %v", numbers, err)
	}
	path := filepath.Join(dir, Path(one, numbers[0]))
	p := readFile(t, path)
	p[100] ^= 1
	writeFile(t, append([]byte("x"), p...), path)
	_, err = s.Contents(t.Context(), one, numbers[0], 0)
	wantErr(t, "no segment", err, format.ErrBadFormat)
}

// TestContentsOfADamagedSegment: what was durable and cannot be read any more is
// told of.
func TestContentsOfADamagedSegment(t *testing.T) {
	dir := t.TempDir()
	other := openStore(t, rankOptions(dir, 1, 7))
	for n := range 5 {
		put(t, other, testItem(uint64(n), 5000, testName(fmt.Sprint(n), uint64(10+n))))
	}
	one := tiers.Part{Rank: 1, Incarnation: 7}
	path := filepath.Join(dir, Path(one, 0))
	p := readFile(t, path)
	s := openStore(t, rankOptions(dir, 0, 8))
	whole, err := s.Contents(t.Context(), one, 0, 0)
	if err != nil || len(whole.Blocks) != 5 {
		t.Fatalf("%+v, %v", whole, err)
	}
	p[whole.Blocks[2].At.Offset-format.PageSize+8] ^= 1 // in a frame's header
	writeFile(t, p, path)
	c, err := s.Contents(t.Context(), one, 0, 0)
	if err != nil || len(c.Blocks) != 2 || c.Damage == nil {
		t.Errorf("%d blocks, damage %v, error %v", len(c.Blocks), c.Damage, err)
	}
	closeStore(t, other)
}

// TestOlderRecordsAreVoid: a store tells what of others it knows better, and
// keeps the withdrawals that say so, and only these.
func TestOlderRecordsAreVoid(t *testing.T) {
	o := rankOptions(t.TempDir(), 0, 8)
	o.Catalogued = true
	s := openStore(t, o)
	put(t, s, testItem(1, 5000, testName("mine", 50)))
	for _, k := range []string{"hides", "hides nothing"} {
		if err := s.Unlink(block.ID{}, testName(k, 50)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	records := []format.Record{{Name: testName("mine", 40)}, {Name: testName("mine", 60)}, {Name: testName("hides", 50)}, {Name: testName("unknown", 1)}}
	if got := fmt.Sprint(s.Older(records)); got != "[true false true false]" {
		t.Errorf("older: %s", got)
	}
	var asked []string
	s.Hides(func(names []block.Name) []bool {
		hides := make([]bool, len(names))
		for i, n := range names {
			asked = append(asked, fmt.Sprint(n.Key, n.Seq))
			hides[i] = n.Key == "hides"
		}
		return hides
	})
	if len(asked) != 2 {
		t.Errorf("asked for %v", asked)
	}
	s.Store.mu.Lock()
	defer s.Store.mu.Unlock()
	for key, want := range map[string]bool{"hides": true, "hides nothing": false} {
		st := s.Store.names[nameKey{"ns", key}]
		if st == nil {
			t.Fatalf("%q is not known", key)
		}
		if got := s.keepsLocked(st.file, st, 1); got != want {
			t.Errorf("%q is kept: %v", key, got)
		}
	}
}
