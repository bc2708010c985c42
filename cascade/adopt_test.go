package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/lustre"
	dirlease "cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// campaignRig is a rank over a directory of segments that others share, of which
// it recovers its own part.
func campaignRig(t *testing.T, dir string, rank uint32) *rig {
	t.Helper()
	cold, err := lustre.Open(lustre.Options{Dir: dir, Rank: rank, OwnOnly: true, Process: dirlease.Killed()})
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, 8<<20, false, func(o *Options) { o.Cold = cold })
}

func (r *rig) chain(prefix string, from, to int, seed uint64) {
	r.t.Helper()
	for i := from; i < to; i++ {
		e := ns(fmt.Sprint(prefix, i))
		if i > 0 {
			e.Parent = fmt.Sprint(prefix, i-1)
		}
		r.put(e, data(seed+uint64(i), 30_000))
	}
}

func (r *rig) drained() {
	r.t.Helper()
	if _, err := r.Drain(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

// TestAdoptParts: what another rank left is served here once it was adopted,
// chains in one piece; what is newer here stays, and what was withdrawn after it
// goes.
func TestAdoptParts(t *testing.T) {
	dir := t.TempDir()
	other := campaignRig(t, dir, 1)
	other.chain("theirs", 0, 20, 0)
	other.put(ns("shared"), data(100, 30_000))
	other.put(ns("withdrawn"), data(101, 30_000))
	other.drained()

	time.Sleep(time.Millisecond)
	r := campaignRig(t, dir, 0)
	r.advance(time.Minute)
	r.chain("mine", 0, 5, 200)
	r.put(ns("shared"), data(300, 30_000)) // newer than theirs
	if n := r.Probe(context.Background(), "ns", []string{"theirs0"}).Hits; n != 0 {
		t.Fatalf("%d hits before the adoption", n)
	}
	parts, err := r.others.Parts(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for turn := range 2 {
		blocks := 0
		for _, p := range parts {
			if p.Rank != 1 {
				continue
			}
			got, err := r.Adopt(context.Background(), p)
			if err != nil {
				t.Fatal(err)
			}
			blocks += got.Blocks
		}
		if want := 21 * (1 - turn); blocks != want {
			t.Errorf("turn %d: %d blocks adopted, want %d", turn, blocks, want)
		}
	}
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint("theirs", i))
	}
	if p := r.probe(context.Background(), "ns", keys, Hint{}).res; p.Hits != 20 { // without bringing any here
		t.Errorf("a probe of the other rank's chain hits %d of 20", p.Hits)
	}
	for i, k := range keys {
		if tier := r.want(k, data(uint64(i), 30_000)); tier != "lustre" {
			t.Errorf("%s comes from %s", k, tier)
		}
		info, _ := r.Stat(context.Background(), "ns", k)
		if i > 0 && (info.Parent != keys[i-1] || info.Depth != uint32(i)) {
			t.Errorf("%s: parent %q, depth %d", k, info.Parent, info.Depth)
		}
	}
	r.want("shared", data(300, 30_000))
	r.want("withdrawn", data(101, 30_000))
	if got := r.Stats().Adopted; got.Blocks != 21 || got.Names != 21 {
		t.Errorf("adopted %+v", got)
	}
	checkInvariants(t, r.Store)
}

// TestPartBecomesOwn: what another process with this rank's number wrote counts
// as another's while that lives, and is kept account of once it has ended.
func TestPartBecomesOwn(t *testing.T) {
	dir := t.TempDir()
	cold, err := lustre.Open(lustre.Options{Dir: dir, Rank: 0, OwnOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	first := newRig(t, 8<<20, false, func(o *Options) { o.Cold = cold })
	first.chain("theirs", 0, 10, 0)
	first.drained()
	first.chain("last", 0, 1, 20)
	first.drained() // of what was written last a reader cannot tell that it is durable

	mine, err := lustre.Open(lustre.Options{Dir: dir, Rank: 0, OwnOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, 8<<20, false, func(o *Options) {
		o.Cold, o.Policy, o.Limits.ColdBytes = mine, policy.Names()[0], 100<<20
	})
	foreign := func() (n int) {
		r.Store.state.Mu.Lock()
		defer r.Store.state.Mu.Unlock()
		for _, b := range r.state.Mu.Blocks {
			if b.Below.OtherOwner {
				n++
			}
		}
		return n
	}
	adopt := func() {
		parts, err := r.others.Parts(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if _, err := r.Adopt(context.Background(), p); err != nil {
				t.Fatal(err)
			}
		}
		checkInvariants(t, r.Store)
	}
	adopt()
	if n := foreign(); n != 10 {
		t.Errorf("%d blocks are another's of 10 while it lives", n)
	}
	first.chain("late", 0, 5, 50)
	first.drained()
	if err := first.Store.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	adopt()
	if n := foreign(); n != 0 {
		t.Errorf("%d blocks are another's still", n)
	}
	for _, key := range []string{"theirs9", "late4"} {
		if n := r.Probe(context.Background(), "ns", []string{key}).Hits; n != 1 {
			t.Errorf("%s is a miss", key)
		}
	}
}

// TestAdoptOnlyWhatIsShared: a tier of this rank alone has no parts.
func TestAdoptOnlyWhatIsShared(t *testing.T) {
	r := newRig(t, 8<<20, true)
	if parts, err := r.others.Parts(context.Background()); len(parts) != 0 || err != nil {
		t.Errorf("parts %v, error %v", parts, err)
	}
	if _, err := r.Adopt(context.Background(), tiers.Part{}); err == nil {
		t.Error("adopted from a tier that is not shared")
	}
}
