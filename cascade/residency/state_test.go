package residency_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
)

// next is the key of the block that a tier gives up next, "" for none.
func next(r *parttest.Rank, m *residency.Level) string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if b := m.Next(); b != nil {
		return b.Names()[0].Key()
	}
	return ""
}

// A state has one to three memory tiers, of which one may lie below those that the process addresses.
func TestNewBoundsTheMemoryTiers(t *testing.T) {
	for n, want := range []bool{false, true, true, true, false} {
		o := residency.Options{}
		for range n {
			o.Memory = append(o.Memory, parttest.Host(t))
		}
		if _, err := residency.New(o, &parttest.Watcher{}); (err == nil) != want {
			t.Errorf("%d memory tiers: %v", n, err)
		}
	}
	o := residency.Options{Memory: []tiers.Memory{parttest.Host(t), testdevice.New(1), testdevice.New(1)}}
	if _, err := residency.New(o, &parttest.Watcher{}); err == nil {
		t.Error("two tiers below the host level are taken")
	}
}

// TestTheHostLevel is the slowest that the process addresses, whatever lies above and below it.
func TestTheHostLevel(t *testing.T) {
	host, device := func() tiers.Memory { return parttest.Host(t) }, func() tiers.Memory { return testdevice.New(1 << 20) }
	for name, tc := range map[string]struct {
		memory []tiers.Memory
		host   int
		deep   bool
	}{
		"one":          {[]tiers.Memory{host()}, 0, false},
		"two":          {[]tiers.Memory{host(), host()}, 1, false},
		"below":        {[]tiers.Memory{host(), device()}, 0, true},
		"two, below":   {[]tiers.Memory{host(), host(), device()}, 1, true},
		"above":        {[]tiers.Memory{device(), host()}, 1, false},
		"above, below": {[]tiers.Memory{device(), host(), device()}, 1, true},
		"hidden":       {[]tiers.Memory{device()}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := residency.New(residency.Options{Memory: tc.memory}, &parttest.Watcher{})
			if err != nil {
				t.Fatal(err)
			}
			if s.Host().Index != tc.host || (s.Deep() != nil) != tc.deep || len(s.Near()) != tc.host+1 || s.Last().Index != len(tc.memory)-1 {
				t.Errorf("host %d, deep %v, near %d, last %d", s.Host().Index, s.Deep(), len(s.Near()), s.Last().Index)
			}
		})
	}
}

// A block with a child in the same tier is no victim, and is one again when the
// child left.
func TestAChainLeavesFromItsEnd(t *testing.T) {
	r := parttest.New(t)
	m := r.Last()
	r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	r.Put(parttest.Name("b", "a"), parttest.Data(2, 1000))
	c := r.Put(parttest.Name("c", "b"), parttest.Data(3, 1000))
	if got := next(r, m); got != "c" {
		t.Errorf("%q leaves first, want c", got)
	}
	r.Mu.Lock()
	r.HoldLocked(c, m.Index)
	r.Mu.Unlock()
	if got := next(r, m); got != "" {
		t.Errorf("%q leaves though all are held", got)
	}
	r.Mu.Lock()
	r.ReleaseLocked(c, m.Index)
	r.DropLocked(c, m, true)
	r.VanishLocked(c)
	r.Mu.Unlock()
	if got := next(r, m); got != "b" {
		t.Errorf("%q leaves next, want b", got)
	}
	if got := r.Has("a", "b", "c"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v are there", got)
	}
	parttest.Check(t, r.State)
}

// The holds of one stay end with it: what still has a view of it does not touch the
// block's next stay.
func TestHoldsEndWithTheStay(t *testing.T) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, files.Use)
	m, p := r.Last(), parttest.Data(1, 1000)
	b := r.PutCold(parttest.Name("a"), p)
	r.Put(parttest.Name("a"), p)
	first := r.Pin("a")
	r.Mu.Lock()
	first.WithdrawLocked()
	r.Mu.Unlock()
	if b.In(m.Index) || r.Block("a") != b {
		t.Fatal("what is withdrawn is in memory, or its name is gone though the cold tier has it")
	}
	r.Put(parttest.Name("a"), p)
	second := r.Pin("a")
	if first.SameBlock(second) {
		t.Error("two stays are one")
	}
	first.Release()
	if got := next(r, m); got != "" {
		t.Errorf("%q would leave with a view of it", got)
	}
	second.Release()
	if got := next(r, m); got != "a" {
		t.Errorf("%q would leave, want a", got)
	}
	parttest.Check(t, r.State)
}

// A deleted block's bytes stay until its last view is released, and views are
// released once.
func TestABlockOutlivesItsName(t *testing.T) {
	r := parttest.New(t)
	p := parttest.Data(1, 1000)
	r.Put(parttest.Name("a"), p)
	v, w := r.Pin("a"), r.Pin("a")
	r.Delete("a")
	v.Release()
	v.Release()
	if n := r.Count.Stats.Views; n != 1 {
		t.Errorf("%d views, want 1", n)
	}
	if !slices.Equal(w.Bytes(), p) || r.Last().Memory.Usage().Blocks != 1 {
		t.Error("the bytes are gone before the view")
	}
	w.Release()
	if u := r.Last().Memory.Usage(); u.Blocks != 0 || len(r.Mu.Blocks) != 0 || r.Count.Stats.BytesStored != 0 {
		t.Errorf("%+v after the last view", u)
	}
	parttest.Check(t, r.State)
}

// Bytes that fail their checksum are no hit again: pinned ones are set aside until
// their views end, and the names go unless a slower tier has the block.
func TestACorruptBlockIsWithdrawn(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprint("cold ", cold), func(t *testing.T) {
			r := parttest.New(t, parttest.NewFiles(t).Use)
			p := parttest.Data(1, 1000)
			if cold {
				r.PutCold(parttest.Name("a"), p)
			}
			r.Put(parttest.Name("a"), p)
			v, w := r.Pin("a"), r.Pin("a")
			r.Seen.Take()
			if !v.Verify(v.CRC()) || r.Count.Stats.Corrupt != 0 {
				t.Error("good bytes are refused")
			}
			if v.Verify(v.CRC()+1) || w.Verify(w.CRC()+1) {
				t.Error("bad bytes are accepted")
			}
			if r.Count.Stats.Corrupt != 1 || len(r.Log.Lines("fails its checksum")) != 1 {
				t.Errorf("withdrawn %d times, logged %v", r.Count.Stats.Corrupt, r.Log.Lines("checksum"))
			}
			if got := r.Has("a"); (len(got) == 1) != cold {
				t.Errorf("%v are there", got)
			}
			if got := parttest.Only(r.Seen.Take(), "invalidate"); (len(got) == 1) == cold {
				t.Errorf("invalidated %v", got)
			}
			sweep := func() int {
				r.Mu.Lock()
				defer r.Mu.Unlock()
				r.SweepJunkLocked()
				return r.Last().Memory.Usage().Blocks
			}
			v.Release()
			if sweep() != 1 {
				t.Error("pinned bytes are gone")
			}
			w.Release()
			if sweep() != 0 {
				t.Error("the bytes stay for ever")
			}
			parttest.Check(t, r.State)
		})
	}
}

// Without verification everything is accepted.
func TestSkipVerify(t *testing.T) {
	r := parttest.New(t, func(o *residency.Options) { o.SkipVerify = true })
	r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	v := r.Pin("a")
	defer v.Release()
	if !v.Verify(v.CRC() + 1) {
		t.Error("refused")
	}
}

// ApplyLocked calls the watcher for what changed, and for nothing else.
func TestTheWatcherLearnsWhatChanged(t *testing.T) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, files.Use)
	a, b := parttest.Data(1, 1000), parttest.Data(2, 1000)
	locked := func(fn func()) func() {
		return func() {
			r.Mu.Lock()
			defer r.Mu.Unlock()
			fn()
		}
	}
	bound := parttest.Name("meta", "a")
	bound.Bound = true
	get := func(key string) *names.Name { return r.Mu.Names.Get("ns", key) }
	for _, step := range []struct {
		what string
		do   func()
		want []string
	}{
		{"a name of a new block", func() { r.Put(parttest.Name("a"), a) }, []string{"publish a", "show a"}},
		{"another name of it", func() { r.Put(parttest.Name("b"), a) }, []string{"publish b", "show b"}},
		{"a name that moves", func() { r.Put(parttest.Name("b"), b) }, []string{"publish b", "publish b", "show b"}},
		{"a view", func() { r.Pin("a").Release() }, nil},
		{"a request", func() { r.Ask("a", "b") }, nil},
		{"another expiry", locked(func() { r.Mu.Names.Expire(get("a"), r.Now().Add(time.Hour), r.Now()); r.ApplyLocked() }), []string{"show a", "publish a"}},
		{"a copy below", locked(func() { r.Cold.StoredLocked(residency.BlockOf(get("a"))) }), []string{"publish all a"}},
		{"no copy below", locked(func() { r.Cold.LeaveLocked(residency.BlockOf(get("a")), false) }), []string{"publish all a"}},
		{"a deleted name", func() { r.Delete("b") }, []string{"hide b", "publish b", "invalidate b"}},
		{"a tier that is full", locked(func() { r.NoteColdLocked(fmt.Errorf("%w: for the test", tiers.ErrFull)) }), []string{"full"}},
		{"a miss of a tier", locked(func() { r.NoteColdLocked(tiers.ErrNotFound) }), nil},
		{"what its caller ended", locked(func() {
			was := r.Cold.Stats.Errors
			r.NoteColdLocked(fmt.Errorf("a write: %w", context.Canceled))
			if r.Cold.Stats.Errors != was {
				t.Error("it counts as a failure of the tier")
			}
		}), nil},
		{"bytes that are nowhere", locked(func() {
			one := residency.BlockOf(get("a"))
			r.DropLocked(one, r.Last(), true)
			r.VanishLocked(one)
		}), []string{"publish all a", "show all a", "invalidate a", "hide a", "publish a"}},
	} {
		r.Seen.Take()
		step.do()
		got := r.Seen.Take()
		slices.Sort(got)
		slices.Sort(step.want)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
		parttest.Check(t, r.State)
	}
	if files.Batches() != nil {
		t.Error("the state wrote blocks")
	}
}

// Names of a block go into every tier that has it, and out of it, newest first.
func TestNamesAreOnRecord(t *testing.T) {
	files := parttest.NewFiles(t)
	r := parttest.New(t, files.Use)
	p, q := parttest.Data(1, 1000), parttest.Data(2, 1000)
	r.PutCold(parttest.Name("a"), p)
	r.Put(parttest.Name("b"), p)
	links, unlinks := files.Linked()
	if len(links) != 1 || links[0].Key != "b" || len(unlinks) != 0 {
		t.Fatalf("links %v, unlinks %v", links, unlinks)
	}
	if r.Mu.Writes.LinkSeq == r.Mu.Writes.SyncedSeq || len(r.CleanerWake) != 1 {
		t.Error("nobody is asked to make the name durable")
	}
	r.Put(parttest.Name("b"), q)
	n := r.Block("b").Names()[0]
	if _, unlinks = files.Linked(); len(unlinks) != 1 || unlinks[0].Seq <= links[0].Seq || unlinks[0].Seq >= n.Seq() {
		t.Errorf("%v is withdrawn, the name is now as of %d", unlinks, n.Seq())
	}
	if n.Key() != "b" || r.Block("b").Info.ID != block.Sum(r.IDBits, q) {
		t.Errorf("%q stands for %v", n.Key(), r.Block("b").Info)
	}
}

// Dirty and pending blocks are counted while they are that.
func TestDirtyAndPendingAreCounted(t *testing.T) {
	r := parttest.New(t, parttest.NewFiles(t).Use)
	want := func(what string, dirty, pending int) {
		t.Helper()
		if st := r.Count.Stats; st.DirtyBlocks != dirty || st.PendingIDs != pending ||
			st.DirtyBytes != int64(dirty)*1000 || st.PendingBytes != int64(pending)*1000 {
			t.Errorf("%s: %d dirty (%d bytes), %d pending (%d bytes)", what, st.DirtyBlocks, st.DirtyBytes, st.PendingIDs, st.PendingBytes)
		}
	}
	a := r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	r.PutPending(parttest.Name("b"), parttest.Data(2, 1000))
	want("two blocks", 2, 1)
	r.Mu.Lock()
	r.Cold.StoredLocked(a)
	r.Mu.Unlock()
	want("one of them is below", 1, 1)
	v := r.Pin("b")
	r.Delete("b")
	want("the other has a view and no name", 0, 0)
	v.Release()
	want("the other is gone", 0, 0)
	r.Mu.Lock()
	if b := r.Pending.Pop(); b != nil {
		t.Error("a block that is gone wants an id")
	}
	r.Mu.Unlock()
	parttest.Check(t, r.State)
}

// Of two tiers that disagree on a block the first is believed.
func TestDisagreeingTiers(t *testing.T) {
	r := parttest.New(t)
	b := r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	other := b.Info
	other.CRC++
	r.Mu.Lock()
	same, no := r.FoundLocked(b.Info), r.FoundLocked(other)
	r.Mu.Unlock()
	if same != b || no != nil || !r.Log.Has("tiers disagree") {
		t.Error("the second copy is believed")
	}
	parttest.Check(t, r.State)
}

// The first name that a block had identifies it for the policies, whatever else it is
// called later.
func TestFingerprintIsOfTheFirstName(t *testing.T) {
	r := parttest.New(t)
	p := parttest.Data(1, 1000)
	b := r.Put(parttest.Name("a"), p)
	r.Put(parttest.Name("b"), p)
	r.Delete("a")
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if got := r.Requests.FingerprintLocked(b); got != block.Fingerprint("ns", "a") || got == block.Fingerprint("ns", "b") {
		t.Errorf("fingerprint %x", got)
	}
}

// Whoever waits for room looks again when a view is released.
func TestReleaseWakesWaiters(t *testing.T) {
	r := parttest.New(t)
	r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	v := r.Pin("a")
	r.Mu.Lock()
	changed := r.Mu.Waiters.Join()
	r.Mu.Unlock()
	v.Release()
	select {
	case <-changed:
	default:
		t.Error("nobody is woken")
	}
}

// A rank is quiet without requests, for which views of background workers and those
// that clients keep do not count.
func TestQuiet(t *testing.T) {
	r := parttest.New(t)
	r.Put(parttest.Name("a"), parttest.Data(1, 1000))
	background, kept := r.Pin("a").Background(), r.Pin("a")
	if r.Activity.Quiet() || r.Activity.Active() != 1 {
		t.Errorf("%d requests are under way", r.Activity.Active())
	}
	kept.Keep()
	kept.Keep()
	if r.Activity.Active() != 0 || r.Activity.Kept() != 1 {
		t.Errorf("%d requests are under way, %d views are kept", r.Activity.Active(), r.Activity.Kept())
	}
	kept.Release()
	background.Release()
	if r.Activity.Active() != 0 || r.Activity.Kept() != 0 {
		t.Errorf("%d requests are under way, %d views are kept", r.Activity.Active(), r.Activity.Kept())
	}
	for end := time.Now().Add(30 * time.Second); !r.Activity.Quiet(); time.Sleep(residency.QuietFor) {
		if time.Now().After(end) {
			t.Fatal("never quiet")
		}
	}
}

// Whoever asks may name any namespace, and the state does not keep them all.
func TestAskedNamespacesAreBounded(t *testing.T) {
	r := parttest.New(t)
	for i := range 2 * names.KeepSpaces {
		r.Count.Lookup(fmt.Sprint("asked", i), false)
	}
	if n := len(r.Namespaces()); n != names.KeepSpaces || r.Count.Stats.Lookups != 2*names.KeepSpaces {
		t.Errorf("%d namespaces, %d look-ups", n, r.Count.Stats.Lookups)
	}
	r.Put(parttest.Name("k"), parttest.Data(1, 100))
	r.Count.Lookup("ns", r.ContainsHere("ns", "k"))
	if sp := r.Mu.Names.Space("ns"); len(sp.List()) != 1 || sp.Found != 1 {
		t.Errorf("%+v", sp)
	}
}

// TestPinnedBytesAreDroppedLater: bytes that another rank reads are out of the way of
// the same block, and leave the tier when the reader is done.
func TestPinnedBytesAreDroppedLater(t *testing.T) {
	r := parttest.New(t)
	name, data := parttest.Name("a"), parttest.Data(1, 1000)
	b, m := r.Put(name, data), r.Last()
	at, err := m.Memory.Place(b.Info.ID)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := m.Memory.PinPlace(at, 1000)
	if err != nil {
		t.Fatal(err)
	}
	r.Mu.Lock()
	r.DropLocked(b, m, true)
	r.VanishLocked(b)
	r.Mu.Unlock()
	r.Put(name, data)
	sweep := func() int {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		r.SweepJunkLocked()
		return m.Memory.Usage().Blocks
	}
	if !bytes.Equal(reader.Bytes(), data) || sweep() != 2 || m.Stats.Errors != 0 {
		t.Errorf("%d blocks, %d errors, or other bytes", m.Memory.Usage().Blocks, m.Stats.Errors)
	}
	if reader.Release(); sweep() != 1 {
		t.Errorf("%d blocks stay", m.Memory.Usage().Blocks)
	}
	parttest.Check(t, r.State)
}
