package directory

import (
	"math"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// content is what a rank states of some bytes: that it keeps them, or is about to.
func content(owner fabric.Rank, version uint64, kept, claimed bool) Statement {
	info := block.Info{ID: block.Sum(block.Bits128, []byte("x")), Size: 1, CRC: block.CRC([]byte("x"))}
	s := Statement{Info: info, Owner: owner, Incarnation: 1, Version: version}
	s.Name = block.Name{Namespace: Contents, Key: ContentKey(info.ID), Seq: ContentSeq}
	if kept {
		s.Segment = &Segment{Path: "p"}
	}
	if claimed {
		s.Memory = &Memory{}
	}
	return s
}

func owners(d *Directory) (list []fabric.Rank) {
	s := content(0, 0, false, false)
	f, _ := d.Lookup(Contents, s.Name.Key, time.Time{})
	for _, c := range f.Copies {
		list = append(list, c.Owner)
	}
	return list
}

func equal(a, b []fabric.Rank) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestClaimsKeepTheirOrder: the first to claim stays first, whatever is claimed later and
// how often; who keeps the bytes comes before all.
func TestClaimsKeepTheirOrder(t *testing.T) {
	d := New()
	for i, owner := range []fabric.Rank{3, 1, 2, 1, 3} {
		if stale := d.Apply(content(owner, uint64(i+1), false, true), start); len(stale) != 0 {
			t.Fatalf("a claim is out of date: %v", stale)
		}
	}
	if got := owners(d); !equal(got, []fabric.Rank{3, 1, 2}) {
		t.Errorf("claims of %v, want 3, 1, 2", got)
	}
	d.Apply(content(2, 9, true, false), start)
	if got := owners(d); !equal(got, []fabric.Rank{2, 3, 1}) {
		t.Errorf("%v, want the keeper first", got)
	}
	d.Lost(map[fabric.Rank]uint64{3: 1, 2: 1})
	if got := owners(d); !equal(got, []fabric.Rank{1, 2}) {
		t.Errorf("%v, want 1, and 2 last, whose segments are left", got)
	}
	d.Clear("", true, math.MaxUint64)
	if got := owners(d); !equal(got, []fabric.Rank{1, 2}) {
		t.Errorf("a clearing of names left %v", got)
	}
}

// TestTheLivingKeeperIsFound: however many dead ranks have left the bytes in their segments,
// the one that can be given names is among the copies, and one that begins anew counts again.
func TestTheLivingKeeperIsFound(t *testing.T) {
	d := New()
	lost := map[fabric.Rank]uint64{}
	for owner := range fabric.Rank(MaxCopies + 1) {
		d.Apply(content(owner, 1, true, false), start)
		lost[owner] = 1
	}
	d.Apply(content(9, 1, true, false), start)
	d.Lost(lost)
	if got := owners(d); len(got) != MaxCopies || got[0] != 9 {
		t.Errorf("%v, want 9 first", got)
	}
	again := content(1, 1, true, false)
	again.Incarnation = 2
	d.Apply(again, start)
	if got := owners(d); !equal(got[:2], []fabric.Rank{1, 9}) {
		t.Errorf("%v, want 1, which is back, and 9", got)
	}
}

// TestTheLowestKeeperIsFound: however many ranks keep the bytes, each of them finds the one to
// which it gives its own up.
func TestTheLowestKeeperIsFound(t *testing.T) {
	d := New()
	for _, owner := range []fabric.Rank{5, 4, 3, 2, 1} {
		d.Apply(content(owner, 1, true, false), start)
	}
	if got := owners(d); !equal(got, []fabric.Rank{5, 4, 1}) {
		t.Errorf("%v, want those that stated it first, and 1", got)
	}
}

// TestClaimsThatComeAgain: who takes a claim back, or has lost what it kept, and claims later
// is not first: others that have claimed since then were.
func TestClaimsThatComeAgain(t *testing.T) {
	for name, first := range map[string]Statement{"claimed": content(1, 1, false, true), "kept": content(1, 1, true, false)} {
		for _, withdrawn := range []bool{false, true} {
			d := New()
			d.Apply(first, start)
			d.Apply(content(3, 1, true, false), start) // the entry stays
			if withdrawn {
				d.Apply(content(1, 2, false, false), start)
			}
			d.Apply(content(2, 1, false, true), start)
			d.Apply(content(1, 3, false, true), start)
			d.Apply(content(3, 2, false, false), start)
			want := []fabric.Rank{2, 1}
			if name == "claimed" && !withdrawn {
				want = []fabric.Rank{1, 2}
			}
			if got := owners(d); !equal(got, want) {
				t.Errorf("%s, withdrawn %v: claims of %v, want %v", name, withdrawn, got, want)
			}
		}
	}
}

// TestSecondCopiesAreReported: to all living owners but the lowest that keep the bytes, until they are
// given up.
func TestSecondCopiesAreReported(t *testing.T) {
	d := New()
	d.Apply(content(1, 1, true, false), start)
	d.Lost(map[fabric.Rank]uint64{1: 1})
	if stale := d.Apply(content(3, 1, true, false), start); len(stale) != 0 {
		t.Errorf("reported, of what a dead rank left: %v", stale)
	}
	for i := range uint64(2) {
		stale := d.Apply(content(2, i+1, true, false), start)
		if len(stale) != 1 || stale[0].Owner != 3 || stale[0].Namespace != Contents {
			t.Errorf("reported: %v, want rank 3", stale)
		}
	}
	if stale := d.Apply(content(4, 1, false, true), start); len(stale) != 1 || stale[0].Owner != 3 {
		t.Errorf("reported: %v, want rank 3, not who claims", stale)
	}
	if stale := d.Apply(content(3, 2, false, false), start); len(stale) != 0 {
		t.Errorf("after it was given up: %v", stale)
	}
	if got := owners(d); !equal(got, []fabric.Rank{2, 4, 1}) {
		t.Errorf("%v have it, want 2 first", got)
	}
}

func TestContentKey(t *testing.T) {
	id := block.Sum(block.Bits256, []byte("x"))
	if got, ok := ContentID(ContentKey(id)); !ok || got != id {
		t.Errorf("%v, %v", got, ok)
	}
	for _, bad := range []string{"", "00", ContentKey(id)[1:] + "g", ContentKey(id) + "00"} {
		if _, ok := ContentID(bad); ok {
			t.Errorf("%q is taken for an id", bad)
		}
	}
}
