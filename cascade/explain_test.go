package cascade

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/tiers"
)

// why asks a rank, and checks that asking changed nothing that it counts.
func why(t *testing.T, s *Store, key string) KeyReport {
	t.Helper()
	before := s.Stats()
	r := Explain(t.Context(), s, "ns", key)
	after := s.Stats()
	if after.Hits != before.Hits || after.Misses != before.Misses || after.Lookups != before.Lookups || after.Tiers[0].Promoted != before.Tiers[0].Promoted {
		t.Errorf("asking why is an access: %+v, before %+v", after, before)
	}
	return r
}

// wantWhy checks the state of a name, and why it was lost last.
func wantWhy(t *testing.T, s *Store, key, state, reason, level string) KeyReport {
	t.Helper()
	r := why(t, s, key)
	if r.State != state || r.Miss.Reason != reason || r.Miss.Level != level {
		text, _ := json.Marshal(r)
		t.Errorf("%q is %s, lost as %q from %q, want %s, %q from %q: %s", key, r.State, r.Miss.Reason, r.Miss.Level, state, reason, level, text)
	}
	return r
}

// TestExplainMiss: each reason for which a request finds nothing is reported as what it is.
func TestExplainMiss(t *testing.T) {
	r := newRig(t, 8<<20, false)
	wantWhy(t, r.Store, "k", NameAbsent, "never", "")
	const n, size = 60, 300_000
	for i := range n {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	r.advance(time.Minute)
	if got := wantWhy(t, r.Store, "0", NameAbsent, "evicted", "shm"); got.Miss.AgoMS < 59_000 || got.Miss.AgoMS > 61_000 || !got.Levels[0].Remembered {
		t.Errorf("%+v", got)
	}
	wantWhy(t, r.Store, fmt.Sprint(n-1), NameReadable, "", "")
	r.put(ns("0"), data(0, size))
	wantWhy(t, r.Store, "0", NameReadable, "evicted", "shm")

	r.Delete(t.Context(), "ns", "0")
	wantWhy(t, r.Store, "0", NameAbsent, "deleted", "")

	e := ns("short")
	e.Expires = r.clock().Add(time.Second)
	r.put(e, data(100, 1000))
	r.nowMu.Lock()
	r.now = r.now.Add(2 * time.Second)
	r.nowMu.Unlock()
	wantWhy(t, r.Store, "short", NameEnded, "ended", "")
	r.Sweep()
	wantWhy(t, r.Store, "short", NameAbsent, "ended", "")

	r.put(Entry{Namespace: "ns", Key: "meta", Parent: "bytes", Bound: true}, data(101, 28))
	wantWhy(t, r.Store, "meta", NameHidden, "hidden", "")

	r.put(ns("bad"), data(102, 1000))
	v, err := r.Get(t.Context(), "ns", "bad")
	if err != nil {
		t.Fatal(err)
	}
	v.Bytes()[7] ^= 1
	r.want("bad", nil)
	v.Release()
	wantWhy(t, r.Store, "bad", NameAbsent, "damaged", "shm")

	if _, err := r.Put(t.Context(), ns("huge"), data(103, 100_000), data(104, 9<<20)); err == nil {
		t.Fatal("more than the tier was stored")
	}
	wantWhy(t, r.Store, "huge", NameAbsent, "refused", "")

	r.Clear(t.Context(), "ns", false)
	wantWhy(t, r.Store, fmt.Sprint(n-1), NameAbsent, "cleared", "")
	wantWhy(t, r.Store, "short", NameAbsent, "ended", "")
}

// TestExplainForgotten: a name that is given up for the heap is no eviction of its block.
func TestExplainForgotten(t *testing.T) {
	r := newRig(t, 16<<20, false, func(o *Options) { o.Limits.NameBytes = 64 << 10 })
	for i := range 200 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 1000))
	}
	wantWhy(t, r.Store, "0", NameAbsent, "forgotten", "")
}

// failingReads is a files tier that can not be read.
type failingReads struct {
	tiers.Files
	err atomic.Pointer[error] // nil: reads go well
}

func (f *failingReads) ReadBatch(ctx context.Context, reads []tiers.Read) []error {
	err := f.err.Load()
	if err == nil {
		return f.Files.ReadBatch(ctx, reads)
	}
	errs := make([]error, len(reads))
	for i := range errs {
		errs[i] = *err
	}
	for _, r := range reads {
		if r.Done != nil {
			r.Done(*err)
		}
	}
	return errs
}

// TestExplainUnread: a block that is stored and could not be read is no block that is not there.
func TestExplainUnread(t *testing.T) {
	for name, tc := range map[string]struct {
		err           error
		state, reason string
	}{
		"late":        {context.DeadlineExceeded, NameReadable, "late"},
		"unavailable": {tiers.ErrUnavailable, NameReadable, "unavailable"},
		"damaged":     {tiers.ErrCorrupt, NameAbsent, "damaged"},
		"gone":        {tiers.ErrNotFound, NameAbsent, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 8<<20, true)
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			cold := &failingReads{Files: r.cold}
			r.cold = cold
			r.open()
			for i := range 60 {
				if err := r.stage(ns(fmt.Sprint(i)), data(uint64(i), 300_000)); err != nil {
					t.Fatal(err)
				}
			}
			if got := wantWhy(t, r.Store, "0", NameReadable, "", ""); got.Levels[0].Here || !got.Levels[1].Here || got.Dirty {
				t.Errorf("a block of the cold tier: %+v", got)
			}
			cold.err.Store(&tc.err)
			r.want("0", nil)
			wantWhy(t, r.Store, "0", tc.state, tc.reason, "host")
		})
	}
}

// TestExplainPlace: what leaves first by Explain does leave first, and what holds a block is
// reported.
func TestExplainPlace(t *testing.T) {
	r := newRig(t, 8<<20, false)
	for i := range 20 {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 300_000))
	}
	first, leased := "", fmt.Sprint(19)
	r.Lease(t.Context(), "ns", leased, "me", time.Minute)
	v, err := r.Get(t.Context(), "ns", leased)
	if err != nil {
		t.Fatal(err)
	}
	before := map[int64]bool{}
	for i := range 20 {
		got := why(t, r.Store, fmt.Sprint(i))
		l := got.Levels[0]
		if !l.Here || l.Policy != "prefix" || l.Class == "" || got.Bytes != 300_000 || got.Names != 1 || got.ID == "" || !got.Dirty {
			t.Fatalf("%+v", got)
		}
		if is := fmt.Sprint(i) == leased; is != got.Leased || is != (got.Readers > 0) || is != (l.Holds > 0) {
			t.Errorf("%d of which %s is leased and read: %+v", i, leased, got)
		}
		if before[l.BeforeBlocks] = true; l.BeforeBlocks == 0 {
			first = fmt.Sprint(i)
		}
	}
	v.Release()
	if len(before) != 20 {
		t.Errorf("20 blocks have %d places", len(before))
	}
	for i := 20; why(t, r.Store, first).State == NameReadable; i++ {
		r.put(ns(fmt.Sprint(i)), data(uint64(i), 300_000))
	}
	if st := r.Stats(); st.Tiers[0].Evicted != 1 {
		t.Errorf("%q left as number %d, and was to leave first", first, st.Tiers[0].Evicted)
	}
	wantWhy(t, r.Store, first, NameAbsent, "evicted", "shm")
}

// TestExplainSegments: where a block lies in this rank's files, written or spilled, and in
// another job's.
func TestExplainSegments(t *testing.T) {
	_, r := spilledChain(t, 200)
	got := wantWhy(t, r.Store, "k0", NameElsewhere, "", "")
	cold := got.Levels[len(got.Levels)-1]
	if !cold.Spilled || cold.Segment == nil || !strings.HasSuffix(cold.Segment.Path, ".bin") || len(got.Copies) != 0 || got.Bytes != spillBlock {
		t.Errorf("spilled: %+v, %+v", got, cold.Segment)
	}
	r.put(ns("written"), data(7777, 1000))
	if _, err := r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = wantWhy(t, r.Store, "written", NameReadable, "", "")
	cold = got.Levels[len(got.Levels)-1]
	if cold.Spilled || !cold.Here || cold.Segment == nil || !strings.HasSuffix(cold.Segment.Path, ".bin") || got.Dirty {
		t.Errorf("written: %+v, %+v", got, cold.Segment)
	}
}

// TestExplainOtherRanks: copies of other ranks, what they withdrew, and what died with them.
func TestExplainOtherRanks(t *testing.T) {
	j := newJob(t, 4, 8<<20)
	for i := range 10 {
		j.ranks[3].putKey(t, fmt.Sprint(i), data(uint64(i), 1000))
	}
	j.settle()
	for _, r := range j.ranks[:3] {
		got := wantWhy(t, r.Store, "0", NameElsewhere, "", "")
		if len(got.Copies) != 1 || got.Copies[0].Rank == nil || *got.Copies[0].Rank != 3 || !got.Copies[0].Memory {
			t.Errorf("%+v", got)
		}
	}
	j.ranks[0].Delete(t.Context(), "ns", "0")
	for _, r := range j.ranks {
		got := why(t, r.Store, "0").Miss.Reason
		if owner := r == j.ranks[3]; got != "deleted" && !(owner && got == "replaced") && (owner || got != "never") { // a home knows
			t.Errorf("rank %d: %q of what was deleted", r.node.Self(), got)
		}
	}
	j.die(3)
	knew := 0
	for i := range 10 {
		for _, r := range j.ranks[:3] {
			got := why(t, r.Store, fmt.Sprint(i))
			if got.State != NameAbsent || got.Miss.Reason == "" {
				t.Errorf("%+v", got)
			}
			if got.Miss.Reason == "rank_dead" {
				if knew++; got.Miss.Rank == nil || *got.Miss.Rank != fabric.Rank(3) || i == 0 {
					t.Errorf("%d: %+v", i, got.Miss)
				}
			}
		}
	}
	if knew < 9 {
		t.Errorf("of 9 names that died with their rank, the others know of %d", knew)
	}
}
