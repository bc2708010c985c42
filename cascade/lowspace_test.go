package cascade

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
	"cascadekv/tiers"
)

// fullRig has a cold tier of segments of 1 MiB on a file system of so many bytes,
// and no budget. quota says that statfs shows room all the same.
func fullRig(t *testing.T, total int64, quota bool, change func(*Options)) (*rig, *vfstest.Bounded) {
	t.Helper()
	bounded := vfstest.NewBounded(vfs.OS{}, total)
	fs := vfstest.NewFault(bounded)
	if quota {
		fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 1 << 50, Free: 1 << 49} })
	}
	tier, err := lustre.Open(lustre.Options{
		Dir: t.TempDir(), FS: fs, SegmentBytes: 1 << 20, OwnOnly: true, RetryFull: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, 8<<20, false, func(o *Options) {
		o.Cold = tier
		change(o)
	})
	return r, bounded
}

// TestFullFileSystem puts far more than the file system, or a quota, holds, without
// a budget: puts go on, ends of chains are given up and heads are found, leased
// blocks stay, and what is given up makes room for what is new.
func TestFullFileSystem(t *testing.T) {
	for _, p := range policy.Names() {
		t.Run(p, func(t *testing.T) { fullFileSystem(t, p, 400, false, 0) })
	}
	// In many turns heads of chains get to be everywhere: only what is taken up into
	// memory makes room to merge.
	t.Run("quota", func(t *testing.T) { fullFileSystem(t, "prefix", 1200, true, 0) })
	t.Run("before the budget is reached", func(t *testing.T) { fullFileSystem(t, "prefix", 400, false, 64<<20) })
}

func fullFileSystem(t *testing.T, p string, turns int, quota bool, budget int64) {
	const total, leases = 16 << 20, 20
	r, fs := fullRig(t, total, quota, func(o *Options) {
		o.Policy, o.Capacity, o.Limits.ColdBytes = p, 60*coldBlock, budget
	})
	s := r.Store
	leased := func(i int) string { return fmt.Sprint("leased", i) }
	for i := range leases {
		r.put(ns(leased(i)), data(uint64(i), coldBlock))
		if !r.Lease(context.Background(), "ns", leased(i), "engine", 24*time.Hour) {
			t.Fatal("no lease")
		}
	}
	rng := rand.New(rand.NewPCG(31, 32))
	for i := range turns {
		putMissing(t, r, rng, i)
		r.advance(time.Second)
	}
	st := s.Stats()
	cold := st.Tiers[1]
	t.Logf("%d puts, %d lost, %d of %d bytes used, %d of them blocks; %d blocks given up, %d errors", st.Puts, st.Lost, fs.Used(), total, cold.Usage.Payload, cold.Evicted, cold.Errors)
	if cold.Evicted == 0 || st.Corrupt != 0 || st.Rejected != 0 || cold.HitBytes == 0 || fs.Used() > total {
		t.Errorf("%+v; %d bytes of %d", st, fs.Used(), total)
	}
	for i := range leases {
		if !s.Contains(t.Context(), "ns", leased(i)) {
			t.Logf("%+v", why(t, s, leased(i)))
		}
		r.want(leased(i), data(uint64(i), coldBlock))
	}
	checkInvariants(t, s)
	late := uint64(1 << 40)
	eventually(t, "all of memory has room below", func() bool {
		r.advance(time.Second)
		late++
		r.put(ns(fmt.Sprint("late", late)), data(late, coldBlock))
		_, err := s.Drain(context.Background())
		return err == nil
	})
	r.want(fmt.Sprint("late", late), data(late, coldBlock))
	checkInvariants(t, s)
}

// TestNothingToGiveUp: a tier that is full of what memory keeps makes nothing go
// round for ever, and puts go on.
func TestNothingToGiveUp(t *testing.T) {
	r, _ := fullRig(t, 2<<20, true, func(*Options) {})
	var keys []string
	for i := range 150 {
		keys = append(keys, fmt.Sprint(i))
		r.put(ns(keys[i]), data(uint64(i), coldBlock))
		if i%10 == 0 {
			r.advance(time.Second)
			_, _ = r.Drain(context.Background())
		}
	}
	if _, err := r.Drain(context.Background()); !errors.Is(err, tiers.ErrFull) {
		t.Fatalf("drained to a full file system: %v", err)
	}
	for range 20 {
		r.advance(policy.LowSpaceStep)
		r.Store.state.Mu.Lock()
		r.space.NoteFullLocked()
		r.Store.state.Mu.Unlock()
		r.space.Shrink()
		for turns := 0; r.space.MergeOnce(t.Context()) || r.space.Evacuate(t.Context()); turns++ {
			if turns > 20 {
				t.Fatal("merging and evacuating go on for ever")
			}
		}
		r.space.MergedAll()
	}
	if n := r.Stats().Tiers[1].Evicted; n > 0 {
		t.Errorf("%d blocks given up below that memory has", n)
	}
	for i, key := range keys {
		r.want(key, data(uint64(i), coldBlock))
	}
	checkInvariants(t, r.Store)
}
