package store

import (
	"bytes"
	"errors"
	"testing"

	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// TestParts: of blocks that do not fill their files the bytes that they have are stored and read, in one batch, and
// no others.
func TestParts(t *testing.T) {
	_, h, o := rig(t, 3, small, 8, 8)
	ring := &counting{}
	o.Ring = func(files []vfs.File) Ring {
		ring.Ring = NewHostRing(files, h.bytes, 2)
		return ring
	}
	s := open(t, o)
	n := small.ObjectBytes()
	sizes := []int64{0, 1, n - 1, n, n + 1, 3*n + 5, 6*n - 1, 6 * n}
	all := ids(0, 8)
	p, err := s.Reserve(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range all {
		h.put(id, i)
	}
	for _, bad := range [][]int64{sizes[:7], {0, 0, 0, 0, 0, 0, 0, 6*n + 1}, {-1, 0, 0, 0, 0, 0, 0, 0}} {
		if err := p.StoreAll(t.Context(), upTo(8), bad); !errors.Is(err, ErrMemory) {
			t.Errorf("sizes %v: %v", bad, err)
		}
	}
	if err := p.StoreAll(t.Context(), upTo(8), sizes); err != nil {
		t.Fatal(err)
	}
	if n, quiet, err := p.Commit(t.Context()); n != 8 || err != nil {
		t.Fatal(n, err)
	} else {
		<-quiet
	}
	closeStore(t, s)
	s = open(t, o)
	h.wipe()
	g, err := s.Retrieve(all)
	if err != nil || g.Blocks() != 8 {
		t.Fatal(err, g.Blocks())
	}
	if errs := g.RetrieveAll(t.Context(), upTo(8), sizes); errs != nil {
		t.Fatal(errs)
	}
	for i, id := range all {
		for o := range int64(6) {
			got, want := h.object(int(o), i), h.content(id, int(o))
			has := min(max(sizes[i]-o*n, 0), n)
			if !bytes.Equal(got[:has], want[:has]) || has < n && got[has] != 0xEE {
				t.Errorf("%d bytes: object %d", sizes[i], o)
			}
		}
	}
	if len(ring.writes) != 1 || len(ring.reads) != 1 || len(ring.writes[0]) != 1+1+1+2+4+6+6 {
		t.Errorf("%d writes, %d reads, %d transfers", len(ring.writes), len(ring.reads), len(ring.writes[0]))
	}
	sizes[5]++
	if errs := g.RetrieveAll(t.Context(), upTo(8), sizes); errs == nil || !errors.Is(errs[5], tiers.ErrCorrupt) || errs[4] != nil {
		t.Errorf("more than there is: %v", errs)
	}
	<-g.Close()
}
