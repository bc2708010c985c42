package cascade

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestTheDisksBudget: of a storm of blocks no more go to the disk than its budget and one block. The others go to files, or
// are dropped and counted where there are none, but for what somebody was promised or reads; no put waits or fails. With
// time, or without a limit, the disk takes blocks again.
func TestTheDisksBudget(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		const size, storm, rate = 300_000, 80, 300_000 * 7 / 2
		l := newLadder(t, top, cold, func(o *Options) { o.Limits.DeepWriteRate, o.Limits.LeaseShare = rate, 1 })
		seed := uint64(0)
		puts := func(n int) {
			for range n {
				l.put(ns(fmt.Sprint("storm", seed)), data(1000+seed, size))
				seed++
			}
		}
		l.put(ns("leased"), data(1, size))
		if !l.Lease(t.Context(), "ns", "leased", "me", 24*time.Hour) {
			t.Fatal("no lease")
		}
		l.put(ns("viewed"), data(2, size))
		v, err := l.Get(t.Context(), "ns", "viewed")
		if err != nil {
			t.Fatal(err)
		}
		puts(storm)
		copied := func() int { return int(l.Stats().Tiers[l.top].Demoted) }
		reach := func(want int) { // two may copy one block, of which one is not counted in the end: the next put has its part of the budget
			t.Helper()
			eventually(t, fmt.Sprint(want, " blocks are copied to the disk"), func() bool { puts(1); return copied() == want })
		}
		reach(4)
		st := l.Stats()
		if n := l.disk.Usage().Blocks; n != 4 {
			t.Errorf("the disk has %d blocks, want 4", n)
		}
		if b := st.Tiers[l.top+1].Budget; b == nil || b.Writes != rate || b.WriteWait == 0 {
			t.Errorf("budget %+v", b)
		}
		if cold != (st.Shed == 0) || st.Lost != 0 || st.Rejected != 0 || st.Tiers[l.top+1].Errors != 0 {
			t.Errorf("%d shed, %d lost, %d refused, %d errors", st.Shed, st.Lost, st.Rejected, st.Tiers[l.top+1].Errors)
		}
		if st.Names+int(st.Shed) != int(seed)+2 {
			t.Errorf("%d names are left and %d were shed, of %d", st.Names, st.Shed, seed+2)
		}
		if !bytes.Equal(v.Bytes(), data(2, size)) {
			t.Error("other bytes in a view")
		}
		v.Release()
		l.want("leased", data(1, size))
		for i := range seed {
			l.wantOf(cold, fmt.Sprint("storm", i), data(1000+i, size))
		}
		l.advance(time.Second)
		puts(storm)
		reach(7)
		l.limit(func(l *Limits) { l.DeepWriteRate = 0 })
		shed := l.Stats().Shed
		puts(storm)
		if st := l.Stats(); st.Shed != shed || copied() < 10 || st.Tiers[l.top+1].Budget != nil {
			t.Errorf("without a limit %d are shed, %d copied; budget %+v", st.Shed-shed, copied(), st.Tiers[l.top+1].Budget)
		}
		l.want("leased", data(1, size))
		l.settled()
		checkInvariants(t, l.Store)
	})
}

// TestADrainBesideTheDisksBudget writes what the disk took, and what it had no budget for.
func TestADrainBesideTheDisksBudget(t *testing.T) {
	const n, size = 40, 300_000
	l := newLadder(t, false, true, func(o *Options) { o.Limits.DeepWriteRate = 4 * size })
	for i := range n {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	if _, err := l.Drain(t.Context()); err != nil || l.Stats().DirtyBlocks != 0 {
		t.Errorf("Drain: %v; %d blocks are dirty", err, l.Stats().DirtyBlocks)
	}
	for i := range n {
		if key := fmt.Sprint(i); !slices.Contains(l.from(key), "host") {
			t.Errorf("%s is in %v", key, l.from(key))
		}
		l.want(fmt.Sprint(i), data(uint64(i), size))
	}
	checkInvariants(t, l.Store)
}
