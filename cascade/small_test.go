package cascade

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// now puts a block without a wait, and reports whether it could.
func (r *rig) putNow(e Entry, p []byte) bool {
	r.t.Helper()
	done, err := PutNow(r.Store, e, p)
	if err != nil {
		r.t.Fatalf("PutNow %q: %v", e.Key, err)
	}
	return done
}

// getNow gets a block of this rank's memory, leased to somebody.
func (r *rig) getNow(keys ...string) *View {
	return r.Here().Get("ns", keys, 10_000, "somebody", time.Minute)
}

// TestNow: what is put and got without a wait counts as it does otherwise.
func TestNow(t *testing.T) {
	r := newRig(t, 16<<20, false)
	p := data(1, 4096)
	if !r.putNow(ns("k"), p) || !r.putNow(ns("other"), data(2, 100)) {
		t.Fatal("there is room")
	}
	r.want("k", p)
	v := r.getNow("k", "other", "none")
	if v == nil || string(v.Bytes()) != string(p) {
		t.Fatal("it is not there")
	}
	v.Release()
	if s := r.Stats(); s.Puts != 2 || s.Hits != 2 || s.Misses != 0 || s.Leases != 2 || s.Views != 0 || s.Tiers[0].Hits != 2 {
		t.Errorf("%+v", s)
	}
	if done, err := PutNow(r.Store, Entry{Namespace: "ns", Key: "k", When: IfAbsent}, p); !done || !errors.Is(err, ErrCondition) {
		t.Errorf("a put whose condition is not met: %v, %v", done, err)
	}
	r.put(ns("large"), data(3, 10_001))
	if r.getNow("none") != nil || r.getNow("large") != nil || r.Stats().Misses != 0 {
		t.Error("a block that is not there, or larger than is asked for")
	}
	if done, _ := PutNow(r.Store, ns(""), p); done {
		t.Error("an entry that can not be")
	}
	v = r.getNow("k")
	v.Bytes()[0] ^= 1
	if bad := r.getNow("k"); bad != nil || r.Stats().Corrupt != 1 {
		t.Error("damaged bytes are handed out")
	}
	v.Release()
	r.want("k", nil)
}

// TestNowMakesRoom: a put without a wait evicts what can leave at once, and loses nothing that
// waits for the cold tier.
func TestNowMakesRoom(t *testing.T) {
	const n, size = 2000, 10_000
	for _, cold := range []bool{false, true} {
		r := newRig(t, 8<<20, cold, func(o *Options) { o.Limits.CleanAbove = 1 })
		done := 0
		for i := range n {
			if r.putNow(ns(fmt.Sprint(i)), data(uint64(i), size)) {
				done++
			}
		}
		s := r.Stats()
		if cold && (done == n || s.Names != done || s.Rejected > 0) || !cold && done < n {
			t.Errorf("cold tier %v: %d of %d are put, %d are there, %d rejected", cold, done, n, s.Names, s.Rejected)
		}
		if cold && r.stage(ns("waits"), data(n, size)) != nil {
			t.Error("a put that waits finds no room")
		}
	}
}

// TestNowElsewhere: what a device has, and what others may have to be asked for, is left to
// those who can wait.
func TestNowElsewhere(t *testing.T) {
	r, _ := deviceRig(t, false)
	if r.put(ns("k"), data(1, 100)); r.putNow(ns("l"), data(2, 100)) || r.getNow("k") != nil {
		t.Error("a device's memory was used")
	}
	j := newJob(t, 2, 16<<20)
	j.ranks[0].putKey(t, "there", data(1, 100))
	for _, e := range []Entry{{Namespace: "ns", Key: "there", When: IfPresent}, {Namespace: "ns", Key: "there", When: IfAbsent}, {Namespace: "ns", Key: "there", KeepTTL: true}} {
		if done, err := PutNow(j.ranks[1].Store, e, data(2, 100)); done || err != nil {
			t.Errorf("%+v: %v, %v", e, done, err)
		}
	}
	eventually(t, "memory is ready for a plain put", func() bool {
		done, err := PutNow(j.ranks[1].Store, ns("here"), data(2, 100))
		if err != nil {
			t.Fatal(err)
		}
		return done
	})
	if j.ranks[1].Here().Get("ns", []string{"there"}, 100, "somebody", time.Minute) != nil {
		t.Error("another rank was asked")
	}
}
