package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
	"cascadekv/internal/testing/testdevice"
	"cascadekv/tiers"
)

// soon has fetches, and waits for room, end soon: for tests in which they may fail.
func soon(o *Options) {
	o.Limits = Limits{FetchDeadline: 300 * time.Millisecond, RoomDeadline: time.Second}
}

// late has them end some seconds later: what does not hang ends before.
func late(o *Options) {
	o.Limits = Limits{FetchDeadline: 4 * time.Second, RoomDeadline: 8 * time.Second}
}

// uncleaned has nothing written to files ahead of need.
func uncleaned(o *Options) { o.Limits.CleanAbove = 1 }

func unchanged(*Options) {}

// wantOf is want of a block; sure: it can not have been lost.
func (l *ladder) wantOf(sure bool, key string, p []byte) {
	l.t.Helper()
	if sure {
		l.want(key, p)
		return
	}
	if v, err := l.Get(context.Background(), "ns", key); err == nil {
		if !bytes.Equal(v.Bytes(), p) {
			l.t.Errorf("%s: other bytes from %s", key, v.Tier())
		}
		v.Release()
	}
}

// inShm puts blocks until one that shm alone has is there, and returns its key.
func (l *ladder) inShm() (key string, p []byte) {
	l.t.Helper()
	for i := range 100 {
		key, p = fmt.Sprint("here ", i), data(uint64(5000+i), 100_000)
		l.put(ns(key), p)
		if slices.Equal(l.from(key), []string{"shm"}) {
			return key, p
		}
	}
	l.t.Fatal("no block stays in shm")
	return "", nil
}

// TestADiskWhoseReadsFail, in whatever way, is a miss of that disk: files serve what they have, and nothing gets other bytes.
func TestADiskWhoseReadsFail(t *testing.T) {
	for name, f := range map[string]testdevice.Faults{
		"hang": {HangReads: true},
		"fail": {Reads: fmt.Errorf("disk: %w: it is gone", tiers.ErrUnavailable)},
		"lost": {Reads: fmt.Errorf("disk: %w: it is gone", tiers.ErrCorrupt)},
	} {
		for _, cold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cold=%v", name, cold), func(t *testing.T) {
				limits := unchanged
				if f.HangReads {
					limits = late
				}
				l := newLadder(t, false, cold, limits)
				p := data(1, 300_000)
				l.onDisk("k", p)
				if _, err := l.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				key, other := l.inShm()
				l.disk.Set(f)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if cold {
						if tier := l.want("k", p); tier != "host" {
							t.Errorf("it came from %s", tier)
						}
						return
					}
					for range 3 {
						l.want("k", nil)
					}
				}()
				for range 10 { // what is not on the disk does not wait for it
					l.want(key, other)
					l.Probe(t.Context(), "ns", []string{key, "nothing"})
				}
				<-ended
				l.disk.Set(testdevice.Faults{})
				l.advance(time.Minute)
				if want := p; cold || name != "lost" {
					l.want("k", want)
				} else if r := why(t, l.Store, "k"); r.State != NameAbsent || r.Miss.Reason != losslog.Damaged.String() || r.Miss.Level != "disk" {
					t.Errorf("%+v", r.Miss)
				}
				l.settled()
				checkInvariants(t, l.Store)
			})
		}
	}
}

// TestAFlippedBitOnTheDisk is a miss, or read from files; a block that is damaged is not written to them.
func TestAFlippedBitOnTheDisk(t *testing.T) {
	l := newLadder(t, false, true)
	damage := func(p []byte) {
		t.Helper()
		if err := l.disk.Corrupt(block.Sum(block.Bits128, p)); err != nil {
			t.Fatal(err)
		}
	}
	p := data(3, 300_000)
	l.put(ns("only copy"), data(1, 300_000))
	l.put(ns("written"), data(2, 300_000))
	l.put(ns("clean"), p)
	l.sink("only copy", "written", "clean")
	damage(data(1, 300_000))
	l.want("only copy", nil)
	damage(data(2, 300_000))
	if _, err := l.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	l.want("written", nil)
	damage(p)
	if tier := l.want("clean", p); tier != "host" {
		t.Errorf("it came from %s", tier)
	}
	if st := l.Stats(); st.Corrupt != 3 {
		t.Errorf("%d blocks were found to be damaged", st.Corrupt)
	}
	l.settled()
	checkInvariants(t, l.Store)
}

// TestADiskThatTakesNothing leaves the way of victims as it is without one: to files, or they are dropped. No put waits
// without end.
func TestADiskThatTakesNothing(t *testing.T) {
	unavailable := fmt.Errorf("disk: %w", tiers.ErrUnavailable)
	for name, f := range map[string]testdevice.Faults{
		"hang":      {HangWrites: true},
		"fail":      {Writes: unavailable},
		"refuse":    {Reserves: unavailable},
		"too large": {Reserves: tiers.ErrTooLarge},
		"short":     {Reserves: tiers.ErrShort},
	} {
		t.Run(name, func(t *testing.T) {
			eachLadder(t, func(t *testing.T, top, cold bool) {
				limits := unchanged
				if f.HangWrites || name == "short" {
					limits = late
				}
				l := newLadder(t, top, cold, limits)
				l.disk.Set(f)
				const n, size = 60, 300_000
				for i := range n {
					l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
				}
				st := l.Stats()
				if u := l.disk.Usage().Blocks; u != 0 || !cold && st.Lost == 0 || cold && st.Lost != 0 || st.Tiers[l.top].Evicted == 0 {
					t.Errorf("%d blocks on the disk, %d lost: %+v", u, st.Lost, st.Tiers)
				}
				for i := range n {
					l.wantOf(cold, fmt.Sprint(i), data(uint64(i), size))
				}
				l.disk.Set(testdevice.Faults{})
				l.advance(time.Minute)
				if name == "too large" {
					return // what is as large is not tried again
				}
				for i := range n {
					l.put(ns(fmt.Sprint("again", i)), data(uint64(1000+i), size))
				}
				if l.disk.Usage().Blocks == 0 {
					t.Error("the disk is never tried again")
				}
				for i := range n {
					l.wantOf(cold, fmt.Sprint("again", i), data(uint64(1000+i), size))
				}
				l.settled()
				checkInvariants(t, l.Store)
			})
		})
	}
}

// TestADrainBesideADiskThatHangs writes what does not lie there alone, and says that this is not all. A later one writes
// the rest.
func TestADrainBesideADiskThatHangs(t *testing.T) {
	l := newLadder(t, false, true, late, uncleaned)
	const n, size = 40, 300_000
	for i := range n {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	l.disk.Set(testdevice.Faults{HangReads: true})
	if _, err := l.Drain(t.Context()); !errors.Is(err, tiers.ErrUnavailable) {
		t.Errorf("Drain: %v", err)
	}
	for i := range n {
		in := l.from(fmt.Sprint(i))
		if slices.Contains(in, "shm") && !slices.Contains(in, "host") {
			t.Errorf("%d is in %v", i, in)
		}
	}
	l.disk.Set(testdevice.Faults{})
	if _, err := l.Drain(t.Context()); err != nil || l.Stats().DirtyBlocks != 0 {
		t.Errorf("Drain: %v, %d blocks are dirty", err, l.Stats().DirtyBlocks)
	}
	checkInvariants(t, l.Store)
}

// TestADrainReadsTheDiskTogether: one read after the other would leave it idle most of the time.
func TestADrainReadsTheDiskTogether(t *testing.T) {
	l := newLadder(t, false, true, uncleaned)
	for i := range 40 {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), 300_000))
	}
	l.disk.Set(testdevice.Faults{HangReads: true})
	drained := make(chan error, 1)
	go func() {
		_, err := l.Drain(t.Context())
		drained <- err
	}()
	eventually(t, "several reads wait for the disk", func() bool { return l.disk.Hanging() > 3 })
	l.disk.Set(testdevice.Faults{})
	if err := <-drained; err != nil || l.Stats().DirtyBlocks != 0 {
		t.Errorf("Drain: %v, %d blocks are dirty", err, l.Stats().DirtyBlocks)
	}
}

// TestOthersDoNotWaitForADiskThatHangs: one read for another rank does, and the next ones fail at once.
func TestOthersDoNotWaitForADiskThatHangs(t *testing.T) {
	l := newLadder(t, false, false, late)
	p := data(1, 300_000)
	l.onDisk("k", p)
	at := Local{l.Store}.State("ns", "k").Memory
	src := fabric.Source{Region: at.Region, Offset: at.Offset, Generation: at.Generation, Length: int64(len(p))}
	l.disk.Set(testdevice.Faults{HangReads: true})
	if _, err := (Local{l.Store}).Hold(src); !errors.Is(err, fabric.ErrStale) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Hold: %v", err)
	}
	if _, err := (Local{l.Store}).Hold(src); !errors.Is(err, fabric.ErrStale) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Hold again: %v", err)
	}
	l.disk.Set(testdevice.Faults{})
	l.advance(time.Minute)
	hold, err := Local{l.Store}.Hold(src)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(hold.Bytes(), p) {
		t.Error("other bytes")
	}
	hold.Release()
}

// TestAFullDiskThatCanNotBeRead: what it has can not be written to files to make room, so victims of shm go there.
func TestAFullDiskThatCanNotBeRead(t *testing.T) {
	l := newLadder(t, false, true, late, uncleaned)
	const size = 300_000
	i := 0
	for ; l.disk.Usage().Used+size <= l.disk.Usage().Capacity; i++ {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	l.disk.Set(testdevice.Faults{Reads: fmt.Errorf("disk: %w", tiers.ErrUnavailable)})
	first := i
	for ; i < first+30; i++ {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	for i := first; i < first+30; i++ {
		l.want(fmt.Sprint(i), data(uint64(i), size))
	}
	l.disk.Set(testdevice.Faults{})
	for i := range first {
		l.want(fmt.Sprint(i), data(uint64(i), size))
	}
	if st := l.Stats(); st.Lost != 0 {
		t.Errorf("%d are lost", st.Lost)
	}
	checkInvariants(t, l.Store)
}

// TestAPutOfWhatIsLostMeanwhile: bytes that are put while a read of the same ones waits, which were lost since it began, are
// stored, and not taken for those.
func TestAPutOfWhatIsLostMeanwhile(t *testing.T) {
	l := newLadder(t, false, false, late)
	p := data(1, 300_000)
	l.onDisk("k", p)
	l.disk.Set(testdevice.Faults{HangReads: true})
	defer l.disk.Set(testdevice.Faults{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if v, err := l.Get(t.Context(), "ns", "k"); err == nil {
			if !bytes.Equal(v.Bytes(), p) {
				t.Error("other bytes")
			}
			v.Release()
		}
	}()
	eventually(t, "the read waits", func() bool { return l.disk.Hanging() > 0 })
	l.state.Mu.Lock()
	residency.GoneLocked(l.state, l.state.Mu.Blocks[block.Sum(block.Bits128, p)], l.state.Deep(), losslog.Damaged)
	l.state.Mu.Unlock()
	if res := l.put(ns("again"), p); res.Duplicate {
		t.Error("it was taken for what is lost")
	}
	l.want("again", p)
	l.disk.Set(testdevice.Faults{})
	<-ended
	l.want("again", p)
	l.settled()
	checkInvariants(t, l.Store)
}

// TestLeasesWithoutTheDisk: what is promised stays in shm while nothing below takes it.
func TestLeasesWithoutTheDisk(t *testing.T) {
	for _, cold := range []bool{false, true} {
		t.Run(fmt.Sprintf("cold=%v", cold), func(t *testing.T) {
			l := newLadder(t, false, cold)
			l.put(ns("leased"), data(1, 300_000))
			l.Lease(t.Context(), "ns", "leased", "me", time.Hour)
			l.disk.Set(testdevice.Faults{Writes: fmt.Errorf("disk: %w", tiers.ErrUnavailable)})
			if cold {
				l.state.Mu.Lock()
				l.state.Mu.Writes.ColdDown = l.clock().Add(time.Hour)
				l.state.Mu.Unlock()
			}
			for i := range 60 {
				l.put(ns(fmt.Sprint(i)), data(uint64(100+i), 300_000))
			}
			if got := l.from("leased"); !slices.Contains(got, "shm") {
				t.Errorf("it is in %v", got)
			}
			l.want("leased", data(1, 300_000))
			checkInvariants(t, l.Store)
		})
	}
}

// TestFilesGiveUpWhatTheDiskHas: where files may take less than the disk does, their budget holds all the same.
func TestFilesGiveUpWhatTheDiskHas(t *testing.T) {
	const size = 100_000
	l := newLadder(t, false, true, func(o *Options) { o.Limits.ColdBytes = 8 << 20 })
	for i := range 130 { // 13 MB: all on the disk, or in shm
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
		if i%20 == 0 {
			if _, err := l.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "the files keep their budget", func() bool {
		l.state.Mu.Lock()
		defer l.state.Mu.Unlock()
		l.state.WakeCleanerLocked(false)
		return l.state.Cold.Bytes <= 8<<20
	})
	lost := 0 // what left memory while the disk had enough to do, and then the files
	for i := range 130 {
		if key := fmt.Sprint(i); l.Contains(t.Context(), "ns", key) {
			l.want(key, data(uint64(i), size))
		} else {
			lost++
		}
	}
	if lost > 26 {
		t.Errorf("%d of 130 blocks are lost, though the disk has room for all", lost)
	}
	checkInvariants(t, l.Store)
}

// TestNamesOnTheDiskAreForgotten for the bound on the heap that names take.
func TestNamesOnTheDiskAreForgotten(t *testing.T) {
	l := newLadder(t, false, false, func(o *Options) { o.Limits.NameBytes = 100 << 10 })
	const n, size = 200, 60_000 // a third of that in shm
	for i := range n {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	if st := l.Stats(); st.Forgotten == 0 || st.Names == n || st.NameBytes > 100<<10*9/8 {
		t.Errorf("%d of %d names are forgotten, %d are left with %d bytes", st.Forgotten, n, st.Names, st.NameBytes)
	}
	checkInvariants(t, l.Store)
}

// TestADiskThatFailsNowAndThen, under load: every get is right, or a miss.
func TestADiskThatFailsNowAndThen(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		l := newLadder(t, top, cold, soon)
		unavailable := fmt.Errorf("disk: %w", tiers.ErrUnavailable)
		var clients, faults sync.WaitGroup
		for c := range 4 {
			clients.Go(func() { l.churn(c, 80) })
		}
		over := make(chan struct{})
		faults.Go(func() {
			all := []testdevice.Faults{{HangReads: true}, {}, {HangWrites: true}, {}, {Reads: unavailable}, {Writes: unavailable}, {Reserves: unavailable}, {}}
			for i := 0; ; i++ {
				select {
				case <-over:
					l.disk.Set(testdevice.Faults{})
					return
				case <-time.After(20 * time.Millisecond):
				}
				l.disk.Set(all[i%len(all)])
				l.advance(time.Minute)
			}
		})
		clients.Wait()
		close(over)
		faults.Wait()
		l.settled()
		if st := l.Stats(); st.Corrupt != 0 {
			t.Errorf("%d are corrupt", st.Corrupt)
		}
		checkInvariants(t, l.Store)
	})
}

// TestReadsDoNotWaitForTheDisk: a read for which the disk has no room now has memory of its own, and the disk is not
// left alone for that.
func TestReadsDoNotWaitForTheDisk(t *testing.T) {
	l := newLadder(t, false, false)
	const n, size = 60, 300_000 // more than shm has
	for i := range n {
		l.put(ns(fmt.Sprint(i)), data(uint64(i), size))
	}
	l.disk.Set(testdevice.Faults{Reserves: tiers.ErrShort})
	read := 0
	for i := range n {
		if key := fmt.Sprint(i); slices.Equal(l.from(key), []string{"disk"}) {
			l.want(key, data(uint64(i), size))
			read++
		}
	}
	l.state.Mu.Lock()
	defer l.state.Mu.Unlock()
	if read == 0 || l.state.Deep().NoWrites.Lasts() {
		t.Errorf("after %d reads the disk is left alone", read)
	}
}
