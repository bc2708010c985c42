package segment

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// seedsPerPoint is how many ways of losing power are tried at each point.
func seedsPerPoint() uint64 {
	if thin() {
		return 5
	}
	return 30
}

// changes reports whether an operation changes what a crash leaves.
func changes(call vfs.Call) bool {
	switch call.Op {
	case vfs.OpRead, vfs.OpReadDir, vfs.OpSize, vfs.OpOpen, vfs.OpStatfs:
		return false
	}
	return true
}

// TestCrashAtEveryOperation stops a scripted run of two incarnations before each
// of its file operations, in every way that there is to stop, and holds what is
// found afterwards against what was acknowledged. A write that is cut short
// needs no point of its own: before the next operation each of its pages may
// be lost.
func TestCrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	crash := vfstest.NewCrash()
	l := newLedger()
	var points, recoveries, blocks int
	fs := crash.Watch(serial(func(call vfs.Call) {
		if !changes(call) {
			return
		}
		points++
		now := l.copy()
		try := func(cut vfstest.Cut, seed uint64) {
			where := fmt.Sprintf("point %d, before %s %s, cut %d, seed %d", points, call.Op, call.Path, cut, seed)
			blocks += now.judgeCrash(t, where, crash.After(cut, seed), 9)
			recoveries++
		}
		for seed := range seedsPerPoint() {
			try(vfstest.CutPower, uint64(points)*1000+seed)
			if seed%4 == 0 {
				try(vfstest.CutNode, uint64(points)*1000+seed)
			}
		}
		try(vfstest.CutProcess, 0)
	}))
	s := script(t, l, func(incarnation uint64) Options { return crashOptions(fs, incarnation) })
	defer s.Close()
	t.Logf("%d crash points, %d recoveries, %d acknowledged blocks read back", points, recoveries, blocks)
	if points < 100 {
		t.Errorf("the script has shrunk to %d points", points)
	}
}

// TestCrashAfterCrash cuts the power during a run, again during the recovery
// that follows and the run after it, and judges what is found in the end.
func TestCrashAfterCrash(t *testing.T) {
	t.Parallel()
	crash := vfstest.NewCrash()
	l := newLedger()
	var first, second int
	every := 4
	if thin() {
		every = 30
	}
	fs := crash.Watch(serial(func(call vfs.Call) {
		if first++; !changes(call) || first%every != 0 {
			return
		}
		left, l := crash.After(vfstest.CutPower, uint64(first)), l.copy()
		l.crashed = l.seq
		again := left.Watch(serial(func(call vfs.Call) {
			if !changes(call) {
				return
			}
			second++
			for seed := range uint64(3) {
				where := fmt.Sprintf("cut %d, then before %s %s, seed %d", first, call.Op, call.Path, seed)
				l.copy().judgeCrash(t, where, left.After(vfstest.CutPower, uint64(second)*10+seed), 9)
			}
		}))
		c := &client{t: t, l: l, s: openStore(t, crashOptions(again, 5))}
		c.thirdRun()
		c.close()
	}))
	s := script(t, l, func(incarnation uint64) Options { return crashOptions(fs, incarnation) })
	defer s.Close()
	t.Logf("%d crash points during runs that began with a crash", second)
	if second < 400/every {
		t.Errorf("the scripts have shrunk to %d points", second)
	}
}

// TestPowerCutAfterRestart ends the process, or its node, at each operation, lets
// the next incarnation recover what it finds, and then cuts the power: what it
// has found it has told others to be stored, so all of it must still be there.
func TestPowerCutAfterRestart(t *testing.T) {
	t.Parallel()
	crash := vfstest.NewCrash()
	l := newLedger()
	points, found, every := 0, 0, 1
	if thin() {
		every = 9
	}
	fs := crash.Watch(serial(func(call vfs.Call) {
		if points++; !changes(call) || points%every != 0 {
			return
		}
		for _, cut := range []vfstest.Cut{vfstest.CutProcess, vfstest.CutNode} {
			left, l := crash.After(cut, uint64(points)), l.copy()
			next := openStore(t, crashOptions(left, 5))
			for id := range next.blocks {
				if !l.acked[id] {
					l.release(id, next.names)
				}
				l.acked[id] = true
				found++
			}
			for seed := range uint64(8) {
				where := fmt.Sprintf("cut %d before %s %s, then power, seed %d", cut, call.Op, call.Path, seed)
				l.judgeCrash(t, where, left.After(vfstest.CutPower, uint64(points)*10+seed), 9)
			}
			settleDown(next)
			closeStore(t, next)
		}
	}))
	s := script(t, l, func(incarnation uint64) Options { return crashOptions(fs, incarnation) })
	defer s.Close()
	t.Logf("%d blocks found by next incarnations", found)
	if found < 1000/every {
		t.Error("next incarnations found next to nothing")
	}
}

// TestFooterVouchesForItsFrames cuts the power while one put waits for its fsync
// and another, for which the segment has no room, seals it. Recovery does not
// look at the payloads of a sealed segment, so the footer must not be there
// before they are.
func TestFooterVouchesForItsFrames(t *testing.T) {
	crash := vfstest.NewCrash()
	fs := vfstest.NewFault(crash)
	s := openStore(t, crashOptions(fs, 1))
	put(t, s, testItem(1, 5000))
	file := s.current
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: server})
	slow, next := testItem(2, 30000), testItem(3, 40000)
	ended := make(chan error, 2)
	go func() { ended <- s.Put(t.Context(), slow) }()
	for s.writtenFrames() < 2 {
		time.Sleep(time.Millisecond)
	}
	frames := sizeOf(t, crash)
	go func() { ended <- s.Put(t.Context(), next) }()
	for s.isCurrent(file) {
		time.Sleep(time.Millisecond)
	}
	for i := 0; i < 20 && sizeOf(t, crash) == frames; i++ {
		time.Sleep(time.Millisecond) // a footer that comes too early comes now
	}
	for seed := range uint64(200) {
		left := crash.After(vfstest.CutPower, seed)
		again := openStore(t, crashOptions(left, 2))
		for id := range again.blocks {
			for _, it := range []tiers.Item{testItem(1, 5000), slow} {
				if it.Info.ID == id {
					wantBytes(t, again, it)
				}
			}
		}
		closeStore(t, again)
	}
	close(server)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if sizeOf(t, crash) == frames {
		t.Error("the segment was never sealed")
	}
	wantBytes(t, s, slow, next)
}

// sizeOf returns the length of the first segment.
func sizeOf(t *testing.T, crash *vfstest.Crash) int64 {
	t.Helper()
	h, err := crash.Open(crash.Files()[0])
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	n, err := h.Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
