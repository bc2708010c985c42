package cascade

import (
	"bytes"
	"fmt"
	"testing"

	"cascadekv/internal/block"
)

// placed is a stage of bytes that somebody has written to the disk by itself.
func (l *ladder) placed(p []byte) *Stage {
	l.t.Helper()
	slot, err := l.disk.Reserve(int64(len(p)))
	if err == nil {
		_, err = slot.Write(0, 0, p)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return Direct{l.Store}.Stage(slot, block.Info{ID: block.Sum(block.Bits128, p), Size: int64(len(p)), CRC: block.CRC(p)})
}

// TestDirect: what somebody writes to the disk by itself is put as a block of the disk alone, dirty, once; where its name or its bytes are there
// already it is given back.
func TestDirect(t *testing.T) {
	eachLadder(t, func(t *testing.T, top, cold bool) {
		const n, size = 6, 100_000
		l := newLadder(t, top, cold)
		l.put(ns("named1"), data(500, size)) // this name is there
		l.put(ns("other"), data(2, size))    // these bytes are
		d := Direct{l.Store}
		items := make([]FuncItem, n)
		for i := range items {
			e := ns(fmt.Sprint("named", i))
			if i > 0 {
				e.Parent = items[i-1].Entry.Key
			}
			if took := d.Admits(e, size, false, 0); took != (i != 1) {
				t.Errorf("block %d is taken: %v", i, took)
			}
			items[i] = FuncItem{Entry: e, Size: size, Placed: l.placed(data(uint64(i), size)), Write: func(*Stage) error { return nil }}
		}
		puts := l.Stats().Puts
		for i, err := range l.PutBatchFunc(t.Context(), items, together, Hint{}) {
			if err != nil {
				t.Errorf("block %d: %v", i, err)
			}
			items[i].Placed.Abort()
		}
		st := l.Stats()
		if st.Puts != puts+n-1 || st.Duplicates != 1 || st.PendingIDs != 0 || l.disk.Usage().Blocks != n-2 || l.disk.Usage().Payload != (n-2)*size {
			t.Errorf("%d puts, %d duplicates, %d ids to come; the disk has %+v", st.Puts-puts, st.Duplicates, st.PendingIDs, l.disk.Usage())
		}
		for i := range items {
			want := data(uint64(i), size)
			if i == 1 {
				want = data(500, size)
			}
			key := items[i].Entry.Key
			info, _ := l.Stat(t.Context(), "ns", key)
			if disk := len(info.Tiers) == 1 && info.Tiers[0] == "disk"; disk != (i != 1 && i != 2) || !info.Dirty {
				t.Errorf("block %d: %+v", i, info)
			}
			l.want(key, want)
		}
		checkInvariants(t, l.Store)
		if cold {
			if _, err := l.Drain(t.Context()); err != nil || l.Stats().DirtyBlocks != 0 {
				t.Errorf("Drain: %v, %d blocks are dirty", err, l.Stats().DirtyBlocks)
			}
		}
		l.settled()
		checkInvariants(t, l.Store)
	})
}

// TestDirectRefused: what may not be written to the disk by somebody else is not begun; what waits to be written costs nobody else a budget, and what is
// begun and not written nobody at all.
func TestDirectRefused(t *testing.T) {
	const size = 100_000
	l := newLadder(t, false, false, func(o *Options) { o.Limits.DeepWriteRate = size })
	d := Direct{l.Store}
	for range 5 {
		if !d.Admits(ns("k"), size, false, 0) || !d.Admits(ns("k"), size, false, size-1) {
			t.Fatal("there is no budget although nothing was written")
		}
		if d.Admits(ns("k"), size, false, size) {
			t.Error("the budget is of bytes that wait")
		}
		d.Count(size)
		if d.Admits(ns("k"), size, false, 0) {
			t.Error("the budget is of other bytes")
		}
		d.Count(-size)
	}
	l.limit(func(l *Limits) { l.DeepWriteRate = 0 })
	l.put(ns("there"), data(1, size))
	if d.Admits(ns("there"), size, false, 0) || !d.Admits(ns("there"), size, true, 0) || !d.Admits(ns("there"), size+1, false, 1<<40) {
		t.Error("a name that is there")
	}
	if d.Admits(Entry{Namespace: "ns"}, size, false, 0) {
		t.Error("a name that is none")
	}
	d.Pause()
	if d.Admits(ns("k"), size, false, 0) || l.Stats().Tiers[1].Errors != 1 {
		t.Errorf("while the disk is left alone: %+v", l.Stats().Tiers[1])
	}
	none := newRig(t, 16<<20, false)
	if (Direct{none.Store}).Admits(ns("k"), size, false, 0) {
		t.Error("without a disk")
	}
}

// TestDirectOfOtherBytes: a block whose bytes on the disk are not those of its id is a miss, and gone.
func TestDirectOfOtherBytes(t *testing.T) {
	l := newLadder(t, false, false)
	p := data(1, 1000)
	slot, err := l.disk.Reserve(1000)
	if err == nil {
		_, err = slot.Write(0, 0, bytes.Repeat([]byte{1}, 1000))
	}
	if err != nil {
		t.Fatal(err)
	}
	st := Direct{l.Store}.Stage(slot, block.Info{ID: block.Sum(block.Bits128, p), Size: 1000, CRC: block.CRC(p)})
	err = l.PutBatchFunc(t.Context(), []FuncItem{{Entry: ns("k"), Size: 1000, Placed: st, Write: func(*Stage) error { return nil }}}, together, Hint{})[0]
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(t.Context(), "ns", "k"); err == nil || l.disk.Usage().Blocks != 0 {
		t.Errorf("%v, the disk has %+v", err, l.disk.Usage())
	}
	checkInvariants(t, l.Store)
}
