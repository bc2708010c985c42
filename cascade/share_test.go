package cascade

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
	"cascadekv/tiers/host"
)

// newTwoTiers is a rig whose fast tier lies in no file.
func newTwoTiers(t *testing.T, fast, shm int64) *rig {
	t.Helper()
	h, err := host.Open(fast)
	if err != nil {
		t.Fatal(err)
	}
	return newRig(t, shm, false, func(o *Options) { o.Memory = append(o.Memory, h) })
}

// wantInArena reads a view's bytes where it says they are.
func (r *rig) wantInArena(v *View, p []byte) {
	r.t.Helper()
	a, ok := r.Arena()
	fd, at, inFile := v.File()
	if !ok || !inFile || fd != a.FD {
		r.t.Fatalf("the view is not in the arena: %d, %v", fd, inFile)
	}
	got := make([]byte, len(p))
	if _, err := unix.Pread(fd, got, at); err != nil || !bytes.Equal(got, p) || !bytes.Equal(v.Bytes(), p) {
		r.t.Errorf("other bytes in the arena at %d (%v)", at, err)
	}
	if v.CRC() != block.CRC(p) {
		r.t.Error("the view has another checksum")
	}
}

// TestShareCopiesWhatIsInNoFile: a block of a tier without a file is copied for
// as long as its view lasts, and one that is in the arena too is viewed there.
func TestShareCopiesWhatIsInNoFile(t *testing.T) {
	r := newTwoTiers(t, 8<<20, 8<<20)
	p := data(1, 100_000)
	r.put(ns("k"), p)
	v, err := r.Get(t.Context(), "ns", "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, ok := v.File(); ok {
		t.Fatal("the fast tier has a file: this tests nothing")
	}
	if st, err := r.Stage(t.Context(), 1, InArena); err == nil { // room for records is set aside
		st.Abort()
	}
	before := r.state.Mem[1].Memory.Usage().Used
	if v, err = r.Share(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	v.Keep()
	r.Delete(t.Context(), "ns", "k")
	r.wantInArena(v, p)
	v.Release()
	if used := r.state.Mem[1].Memory.Usage().Used; used != before {
		t.Errorf("the arena has %d bytes taken, %d before the view", used, before)
	}

	r.put(ns("both"), p)
	b := r.state.Mu.Blocks[block.Sum(block.Bits128, p)]
	if err := r.evict.Demote(t.Context(), b, r.state.Mem[0], r.state.Mem[1], eviction.AnyBlock); err != nil {
		t.Fatal(err)
	}
	v, err = r.Get(t.Context(), "ns", "both")
	if err != nil {
		t.Fatal(err)
	}
	if v, err = r.Share(t.Context(), v); err != nil || v.In() != r.state.Mem[1] {
		t.Fatalf("%v, in %v", err, v.In())
	}
	r.wantInArena(v, p)
	v.Release()
	if n := r.Stats().Views; n != 0 {
		t.Errorf("%d views are left", n)
	}
	checkInvariants(t, r.Store)
}

func TestNoArenaNothingShared(t *testing.T) {
	h, err := host.Open(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Memory: []tiers.Memory{h}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	if _, err := s.Put(t.Context(), ns("k"), data(1, 1000), nil); err != nil {
		t.Fatal(err)
	}
	v, err := s.Get(t.Context(), "ns", "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Share(t.Context(), v); !errors.Is(err, ErrNoArena) {
		t.Errorf("Share: %v", err)
	}
	if _, err := s.Stage(t.Context(), 1, InArena); !errors.Is(err, ErrNoArena) {
		t.Errorf("Stage InArena: %v", err)
	}
	if _, ok := s.Arena(); ok || s.Stats().Views != 0 {
		t.Error("an arena, or a view, that is none")
	}
}

// TestStagesOfOthersLieInTheArena, though a faster tier has room.
func TestStagesOfOthersLieInTheArena(t *testing.T) {
	r := newTwoTiers(t, 8<<20, 8<<20)
	p := data(1, 5000)
	st, err := r.Stage(t.Context(), 5000, InArena)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := r.Arena()
	fd, at, ok := st.File()
	if !ok || fd != a.FD {
		t.Fatal("the stage is not in the arena")
	}
	if _, err := unix.Pwrite(fd, p, at); err != nil {
		t.Fatal(err)
	}
	st.Keep()
	st.Filled(5000)
	if err := st.Commit(t.Context(), ns("k")); err != nil {
		t.Fatal(err)
	}
	r.want("k", p)
}

// TestWhatIsKeptHoldsNothingUp: views and stages that last are no requests under
// way, so ids are completed and rings of equal blocks are broken all the same.
func TestWhatIsKeptHoldsNothingUp(t *testing.T) {
	r := newRig(t, 8<<20, false)
	kept := data(1<<40, 10_000)
	r.put(ns("kept"), kept)
	v, err := r.Get(t.Context(), "ns", "kept")
	if err != nil {
		t.Fatal(err)
	}
	v.Keep()
	v.Keep()
	st, err := r.Stage(t.Context(), 10_000, InArena)
	if err != nil {
		t.Fatal(err)
	}
	st.Keep()
	if err := r.stage(ns("later"), data(1<<41, 10_000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the id is completed", func() bool { return r.Stats().PendingIDs == 0 })
	for i := range 200 {
		a, b := data(uint64(2*i), 100_000), data(uint64(2*i+1), 100_000)
		for j, p := range [][]byte{a, b, a} {
			e := ns(fmt.Sprint(i, ".", j))
			if j > 0 {
				e.Parent = fmt.Sprint(i, ".", j-1)
			}
			r.put(e, p)
		}
	}
	r.wantInArena(v, kept)
	v.Release()
	st.Abort()
	if r.state.Activity.Active() != 0 || r.state.Activity.Kept() != 0 {
		t.Errorf("%d requests and %d kept views are left", r.state.Activity.Active(), r.state.Activity.Kept())
	}
	checkInvariants(t, r.Store)
}

// TestResidentBlocksOfOthers are copied here at the first get, also when they
// were fetched ahead, or are read by another get, without a place.
func TestResidentBlocksOfOthers(t *testing.T) {
	j := newJob(t, 2, 16<<20)
	keys := []string{"plain", "ahead", "joined"}
	for i, key := range keys {
		j.ranks[0].putKey(t, key, data(uint64(i), 5000))
	}
	j.settle()
	b := j.ranks[1]
	if p := b.Probe(t.Context(), "ns", []string{"ahead"}); p.Hits != 1 {
		t.Fatalf("%+v", p)
	}
	eventually(t, "it was fetched ahead", func() bool {
		b.state.Mu.Lock()
		defer b.state.Mu.Unlock()
		_, here := b.load.WaitingLocked(residency.NameID{NS: "ns", Key: "ahead"})
		return here
	})
	release := b.load.HoldReads()
	other := make(chan error, 1)
	go func() {
		v, err := b.Get(t.Context(), "ns", "joined")
		if err == nil {
			v.Release()
		}
		other <- err
	}()
	underWay := func(n int) func() bool {
		return func() bool {
			b.state.Mu.Lock()
			defer b.state.Mu.Unlock()
			waiters, _ := b.load.WaitingLocked(residency.NameID{NS: "ns", Key: "joined"})
			return waiters == n
		}
	}
	eventually(t, "the other get is under way", underWay(1))
	type result struct {
		views []*View
		err   error
	}
	got := make(chan result, 1)
	go func() {
		views, err := b.GetBatch(t.Context(), "ns", append(keys, "nowhere"), Resident)
		got <- result{views, err}
	}()
	eventually(t, "both wait for one fetch", underWay(2))
	release()
	res := <-got
	if err := errors.Join(res.err, <-other); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		v := res.views[i]
		if v == nil || v.In() == nil || !bytes.Equal(v.Bytes(), data(uint64(i), 5000)) {
			t.Fatalf("%s: %+v", key, v)
		}
		v.Release()
		if tier := b.wantAt(t, key, data(uint64(i), 5000)); tier != "shm" {
			t.Errorf("%s is served from %s", key, tier)
		}
	}
	if res.views[3] != nil {
		t.Error("a key nobody stored is resident")
	}
	if st := b.Stats(); st.Hits != 7 || st.Misses != 1 {
		t.Errorf("%d hits and %d misses are counted of 7 and 1", st.Hits, st.Misses)
	}
}

func TestContainsBatchIsContainsOfEach(t *testing.T) {
	j := newJob(t, 3, 16<<20)
	var keys [][]byte
	for i := range 2*residency.LookStep + 100 {
		keys = append(keys, fmt.Append(nil, i))
		if i%100 == 0 {
			j.ranks[i/100%3].putKey(t, string(keys[i]), data(uint64(i), 100))
		}
	}
	bound := Entry{Namespace: "ns", Key: "half", Parent: "nowhere", Bound: true}
	if _, err := j.ranks[0].Put(t.Context(), bound, data(7, 100), nil); err != nil {
		t.Fatal(err)
	}
	keys = append(keys, []byte("half"))
	j.settle()
	for _, r := range j.ranks {
		for i, found := range r.ContainsBatch(t.Context(), "ns", keys) {
			if want := i%100 == 0 && i < len(keys)-1; found != want {
				t.Errorf("rank %d: key %q: %v", r.node.Self(), keys[i], found)
			}
		}
		if slices := r.ContainsBatch(t.Context(), "ns", nil); len(slices) != 0 {
			t.Error("an answer to nothing")
		}
	}
}
