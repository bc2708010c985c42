package directory

import (
	"strconv"
	"testing"
	"time"
)

// TestTombstonesThatAreKeptLonger: they are bounded, and the oldest go first.
func TestTombstonesThatAreKeptLonger(t *testing.T) {
	d, now := New(), start
	const more = MaxLonger / 4
	for i := range MaxLonger + more {
		now = now.Add(time.Microsecond)
		d.Delete("ns", strconv.Itoa(i), 20, now)
	}
	if d.Sweep(now, time.Hour); d.Len() != MaxLonger+more {
		t.Errorf("%d of %d are left before their time is over", d.Len(), MaxLonger+more)
	}
	if d.Sweep(now.Add(time.Hour), time.Hour); d.Len() > MaxLonger || d.Len() < MaxLonger*15/16 { // by shards
		t.Errorf("%d are left, at most %d may be", d.Len(), MaxLonger)
	}
	kept := 0
	d.EachDeleted(func(_, name string, _ uint64) {
		if i, _ := strconv.Atoi(name); i >= 2*more {
			kept++
		}
	})
	if kept < (MaxLonger-more)*15/16 {
		t.Errorf("%d of the last %d are left", kept, MaxLonger-more)
	}
	if d.Sweep(now.Add(2*time.Hour), time.Hour); d.Len() != 0 {
		t.Errorf("%d are left when that is over", d.Len())
	}
}
