package tiertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// name is a full record, so that recovery can be checked field by field.
func name(key string, seq uint64) block.Name {
	return block.Name{
		Namespace: "model/ä\x00\xff", Key: key, Parent: "p:" + key, Depth: uint32(seq % 1000),
		Prefix: seq%2 == 0, Bound: seq%3 == 0, Seq: seq,
		Expires: time.Unix(2000000000, int64(seq)).UTC(),
	}
}

func sameName(a, b block.Name) bool {
	ae, be := a.Expires, b.Expires
	a.Expires, b.Expires = time.Time{}, time.Time{}
	return a == b && ae.Equal(be)
}

// wantNames checks what the newest recovered records say.
func (o *opened) wantNames(t *testing.T, want map[string]nameRecord) {
	t.Helper()
	for key, w := range want {
		got, ok := o.names[nameKey{w.name.Namespace, key}]
		switch {
		case w.dropped && (!ok || got.dropped):
		case !ok:
			t.Errorf("name %q is lost", key)
		case w.dropped != got.dropped || w.id != got.id:
			t.Errorf("name %q: dropped %v, block %v; want dropped %v, block %v", key, got.dropped, got.id, w.dropped, w.id)
		case !sameName(got.name, w.name):
			t.Errorf("name %q = %+v, want %+v", key, got.name, w.name)
		}
	}
	for k, r := range o.names {
		if _, ok := want[k.key]; !ok && !r.dropped {
			t.Errorf("name %q was never recorded", k.key)
		}
	}
}

// wantBlocks checks that recovery handed over each of want, with its bytes.
func (o *opened) wantBlocks(t *testing.T, want ...tiers.Item) {
	t.Helper()
	for _, it := range want {
		if o.blocks[it.Info.ID] != it.Info {
			t.Errorf("block %v: recovered %+v, want %+v", it.Info.ID, o.blocks[it.Info.ID], it.Info)
			continue
		}
		readBack(t, o, it)
	}
}

func (c Config) reopen(t *testing.T) {
	tr := c.fresh(t, roomy)
	var all []tiers.Item
	for i, size := range sizes {
		all = append(all, item(uint64(i), size, name(fmt.Sprint("k", i), uint64(i+1))))
	}
	put(t, tr, all[:4]...)
	for _, it := range all[4:] {
		put(t, tr, it)
	}
	again := c.reopened(t, tr, roomy)
	if !c.Persistent {
		wantMiss(t, again, all[0].Info.ID)
		put(t, again, all[0])
		readBack(t, again, all[0])
		return
	}
	again.wantBlocks(t, all...)
	if u := again.Usage(); u.Blocks != len(all) {
		t.Errorf("usage after reopening = %+v, want %d blocks", u, len(all))
	}
	wantErr(t, "Put of a recovered block", again.Put(t.Context(), all[2]), tiers.ErrExists)
	late := item(900, 70000)
	put(t, again, late)
	third := c.reopened(t, again, roomy)
	third.wantBlocks(t, append(all, late)...)
}

// names tries that links outlive the process and the newest record wins. A
// tier that does not outlive it must accept them all.
func (c Config) names(t *testing.T) {
	tr := c.fresh(t, roomy)
	a := item(1, 5000, name("a", 10), name("both", 11), name("gone", 12))
	b := item(2, 28, name("b", 20))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put(t, tr, a, b)
	must(tr.Link(b.Info.ID, name("both", 30)))   // moves to another block
	must(tr.Unlink(a.Info.ID, name("gone", 31))) // withdrawn
	must(tr.Link(a.Info.ID, name("a", 32)))      // same block, new facts
	must(tr.Link(b.Info.ID, name("late", 33)))   // a new name
	must(tr.Link(b.Info.ID, name("back", 34)))   // withdrawn, then there again
	must(tr.Unlink(b.Info.ID, name("back", 35))) //
	must(tr.Link(a.Info.ID, name("back", 36)))   //
	must(tr.Link(a.Info.ID, name("moved", 40)))  // to another block, as the store does it:
	must(tr.Link(b.Info.ID, name("moved", 42)))  // the new record first,
	must(tr.Unlink(a.Info.ID, name("moved", 41)))
	must(tr.Link(a.Info.ID, name("ended", 44))) // withdrawn as of its own record
	must(tr.Unlink(a.Info.ID, name("ended", 44)))
	if !c.Persistent {
		return
	}
	want := map[string]nameRecord{
		"a":     {id: a.Info.ID, name: name("a", 32)},
		"b":     {id: b.Info.ID, name: name("b", 20)},
		"both":  {id: b.Info.ID, name: name("both", 30)},
		"gone":  {dropped: true},
		"ended": {dropped: true},
		"late":  {id: b.Info.ID, name: name("late", 33)},
		"back":  {id: a.Info.ID, name: name("back", 36)},

		"moved": {id: b.Info.ID, name: name("moved", 42)},
	}
	for round := range 3 {
		tr = c.reopened(t, tr, roomy)
		t.Logf("round %d: %d blocks, %d names", round, len(tr.blocks), len(tr.names))
		tr.wantBlocks(t, a, b)
		tr.wantNames(t, want)
	}
	must(tr.Unlink(b.Info.ID, name("late", 50)))
	want["late"] = nameRecord{dropped: true}
	tr = c.reopened(t, tr, roomy)
	tr.wantNames(t, want)
}

// layouts tries that the newest layout of a namespace counts, and outlives the process as
// names do.
func (c Config) layouts(t *testing.T) {
	tr := c.fresh(t, roomy)
	ns := name("a", 1).Namespace
	first := block.Layout{Bytes: 5000, KeyBytes: 2500, Tokens: 16, Layers: 2, Heads: 8, HeadDim: 80, DType: "bf16"}
	second := block.Layout{Tokens: 32}
	set := func(seq uint64, l block.Layout) {
		t.Helper()
		if err := tr.SetLayout(ns, seq, l); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, seq uint64, l block.Layout) {
		t.Helper()
		if at, got := tr.Layout(ns); at != seq || got != l {
			t.Errorf("%s: layout %v of %d, want %v of %d", when, got, at, l, seq)
		}
	}
	want("nobody has said", 0, block.Layout{})
	if !c.Persistent {
		set(5, first)
		tr = c.reopened(t, tr, roomy)
		want("after a restart", 0, block.Layout{})
		return
	}
	wantErr(t, "SetLayout of a bad one", tr.SetLayout(ns, 9, block.Layout{KeyBytes: 1}), block.ErrBadLayout)
	set(5, first)
	set(4, second)
	want("an older one came later", 5, first)
	put(t, tr, item(1, 5000, name("a", 10)))
	tr = c.crashed(t, tr, roomy)
	want("after a crash", 5, first)
	set(7, second)
	put(t, tr, item(2, 5000, name("b", 20)))
	for round := range 2 {
		tr = c.reopened(t, tr, roomy)
		want(fmt.Sprint("restart ", round), 7, second)
	}
}

// crash tries that what Put acknowledged is there when the process just ends.
func (c Config) crash(t *testing.T) {
	tr := c.fresh(t, roomy)
	var all []tiers.Item
	want := map[string]nameRecord{}
	for i, size := range sizes {
		n := name(fmt.Sprint("k", i), uint64(i+1))
		it := item(uint64(i), size, n)
		put(t, tr, it)
		all = append(all, it)
		want[n.Key] = nameRecord{id: it.Info.ID, name: n}
	}
	again := c.crashed(t, tr, roomy)
	again.wantBlocks(t, all...)
	again.wantNames(t, want)
	if c.Corrupt == nil {
		return
	}
	bad := all[len(all)-2]
	c.Corrupt(t, again.dir, again.Tier, bad.Info.ID)
	third := c.crashed(t, again, roomy)
	for _, it := range all {
		if it.Info.ID != bad.Info.ID {
			readBack(t, third, it)
		}
	}
	p, err := third.Pin(bad.Info.ID)
	if err == nil {
		err = p.ReadInto(t.Context(), make([]byte, bad.Info.Size))
		p.Release()
	}
	if !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrCorrupt) {
		t.Errorf("a block that was corrupted while nobody ran: %v", err)
	}
}

// manyCrashes tries that recovery of a recovered tier loses nothing.
func (c Config) manyCrashes(t *testing.T) {
	tr := c.fresh(t, roomy)
	var all []tiers.Item
	for round := range 5 {
		for i := range 4 {
			it := item(uint64(round*10+i), int64(round*3000+i*500))
			put(t, tr, it)
			all = append(all, it)
		}
		tr = c.crashed(t, tr, roomy)
		tr.wantBlocks(t, all...)
	}
}

func (c Config) torn(t *testing.T) {
	tr := c.fresh(t, roomy)
	a, b := item(1, 42<<10), item(2, 100)
	put(t, tr, a)
	put(t, tr, b)
	dir := tr.dir
	if c.Crash != nil {
		dir = c.Crash(t, dir, tr.Tier)
	}
	c.Torn(t, dir)
	again := c.open(t, dir, roomy)
	defer again.Close()
	again.wantBlocks(t, a, b)
	if len(again.blocks) != 2 {
		t.Errorf("%d blocks recovered, want the 2 that were acknowledged", len(again.blocks))
	}
	late := item(3, 9000)
	put(t, again, late)
	readBack(t, again, late)
}
