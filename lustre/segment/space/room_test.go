package space

import (
	"errors"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

func TestMarks(t *testing.T) {
	for _, c := range []struct{ segment, total, low, high int64 }{
		{1 << 30, 100 << 40, 512 << 20, 1 << 30},
		{1 << 30, 10000, 50, 100}, // one part in a hundred
		{1 << 30, 0, 0, 0},        // a file system without figures
	} {
		if low, high := marks(c.segment, c.total); low != c.low || high != c.high {
			t.Errorf("segments of %d on %d: %d and %d, want %d and %d", c.segment, c.total, low, high, c.low, c.high)
		}
	}
}

// TestRoom: blocks are refused below the low mark until there is the high one, and
// everything after a write that found no room until there is more than then.
func TestRoom(t *testing.T) {
	now, free := time.Unix(1800000000, 0), int64(10<<20)
	fs := vfstest.NewFault(vfs.OS{})
	fs.SetSpace(func() vfs.Space { return vfs.Space{Total: 1 << 40, Free: free} })
	r := New(Options{FS: fs, Dir: t.TempDir(), Segment: 1 << 20, RetryFull: time.Hour, Now: func() time.Time { return now }})
	check := func(what string, blocks int, refused bool) {
		t.Helper()
		now = now.Add(LookEvery)
		err := r.Check(1000, blocks)
		if short, _ := r.Short(); (err != nil) != refused || err != nil && (!errors.Is(err, tiers.ErrFull) || !short) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.CheckNewFile(1000, 1); err != nil {
		t.Error(err)
	}
	check("there is room", 1, false)
	free = 400 << 10
	check("a block below the low mark", 1, true)
	check("names below the low mark", 0, false)
	free = 700 << 10
	check("between the marks", 1, true)
	free = 2 << 20
	check("above the high mark", 1, false)
	r.Spend(2<<20 - 100<<10)
	if short, left := r.Short(); !short || left != 100<<10 {
		t.Errorf("after own writes: %v, %d bytes", short, left)
	}
	check("statfs says otherwise", 1, false)
	r.Fill()
	check("after a write that found none", 0, true)
	free = 4 << 20
	check("there is more than then", 0, false)
	r.Fill()
	now = now.Add(time.Hour)
	check("a quota may have been raised", 1, false)
}
