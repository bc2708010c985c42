package cascade

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/residency"
)

// TestWriteBudget: once the budget of writes is used up, what must leave memory is dropped and
// counted instead of written, but for what is leased; puts go on. With a budget again it is
// written, and a drain writes all that is in memory whatever the budget is.
func TestWriteBudget(t *testing.T) {
	const size, blocks = 64 << 10, 120
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 4<<20)
	r := j.ranks[0]
	r.limit(func(l *Limits) { l.WriteRate = 1 }) // one batch of one block, and then a debt of most of a day
	put := func(i int) { r.putKey(t, fmt.Sprint(i), data(uint64(i), size)) }
	r.putKey(t, "leased", data(2000, size))
	if !r.Lease(t.Context(), "ns", "leased", "somebody", time.Hour) {
		t.Fatal("no lease")
	}
	for i := range blocks {
		put(i)
	}
	st := r.Stats()
	durable, _ := j.durable(0)
	if st.Shed == 0 || st.Lost != 0 || st.Unwritten != 0 || st.Rejected != 0 || durable > 2 {
		t.Fatalf("%d shed, %d lost, %d unwritten, %d rejected; %d in files", st.Shed, st.Lost, st.Unwritten, st.Rejected, durable)
	}
	if st.Names+int(st.Shed) != blocks+1 {
		t.Errorf("%d names are left and %d blocks were shed, of %d", st.Names, st.Shed, blocks+1)
	}
	if b := st.Tiers[len(st.Tiers)-1].Budget; b == nil || b.Writes != 1 || b.WriteWait == 0 || b.Reads != 0 {
		t.Errorf("budget %+v", b)
	}
	r.wantAt(t, "leased", data(2000, size))
	j.late.Add(int64(48 * time.Hour))
	r.limit(func(l *Limits) { l.WriteRate = 0 })
	for i := range blocks {
		put(1000 + i)
	}
	shed := r.Stats().Shed
	if shed != st.Shed {
		t.Errorf("%d are shed without a limit", shed-st.Shed)
	}
	r.limit(func(l *Limits) { l.WriteRate = 1 })
	r.state.Cold.Writes.Take(size)
	j.drainAll(0)
	if durable, _ := j.durable(0); durable != 2*blocks+1-int(shed) {
		t.Errorf("%d in files after a drain, %d shed, of %d", durable, shed, 2*blocks+1)
	}
}

// TestReadBudget: once the budget of reads is used up, what is in files only is a miss that is
// counted with its reason and no error of the tier; what is in memory is served, and a client
// is advised to compute. With a budget again it is read.
func TestReadBudget(t *testing.T) {
	const size, blocks = 64 << 10, 8
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 8<<20)
	r := j.ranks[0]
	var keys []string
	for i := range blocks {
		keys = append(keys, fmt.Sprint(i))
		r.putKey(t, keys[i], data(uint64(i), size))
	}
	j.drainAll(0)
	r.dropMemory(t)
	r.limit(func(l *Limits) { l.ReadRate = size })
	r.wantAt(t, "0", data(0, size)) // the first second's worth
	r.state.Cold.Reads.Take(3600 * size)
	for _, k := range keys[1:] {
		r.wantMiss(t, k)
	}
	r.wantAt(t, "0", data(0, size))
	st := r.Stats()
	cold := st.Tiers[len(st.Tiers)-1]
	if n := st.Losses[residency.StepSegment]["over_budget"]; n != blocks-1 || cold.Errors != 0 {
		t.Errorf("lost %v; %d errors", st.Losses, cold.Errors)
	}
	if cold.Budget == nil || cold.Budget.ReadWait < 3000e6 || cold.Load.BytesPerSecond > size {
		t.Errorf("budget %+v, load %+v", cold.Budget, cold.Load)
	}
	if a := Advise(t.Context(), r.Store, "ns", keys, Ask{PerBlock: time.Second}); a.Hits != blocks || a.Blocks != 1 {
		t.Errorf("%d of %d are to be loaded, want what is in memory: %+v", a.Blocks, a.Hits, a.Runs)
	}
	j.late.Add(int64(2 * time.Hour))
	r.wantAt(t, "1", data(1, size))
	r.limit(func(l *Limits) { l.ReadRate = 0 })
	for i, k := range keys {
		r.wantAt(t, k, data(uint64(i), size))
	}
}

// TestLoadsComeBeforeStores: while the file system takes no more writes, for want of a budget or because it is busy, what
// it has is loaded all the same, into memory that is full of blocks that wait to be written, and drops none of these. It is stores that
// find no room and are counted.
func TestLoadsComeBeforeStores(t *testing.T) {
	const size, blocks = 64 << 10, 24
	for name, spent := range map[string]bool{"budget": true, "busy": false} {
		t.Run(name, func(t *testing.T) {
			j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
			j.open(1, 4<<20)
			r := j.ranks[0]
			for i := range blocks {
				r.putKey(t, fmt.Sprint("cold", i), data(uint64(i), size))
			}
			j.drainAll(0)
			r.dropMemory(t)
			r.limit(func(l *Limits) { l.RoomDeadline, l.FetchDeadline = time.Hour, time.Hour })
			release := make(chan struct{})
			defer close(release)
			if spent {
				r.limit(func(l *Limits) { l.WriteRate = 1 })
				r.state.Cold.Writes.Take(size)
			} else {
				r.cold.set(hooks{put: func() error { <-release; return nil }}) // whatever its context says, as a call of the kernel
			}
			failed, stored := 0, 0
			store := func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if !spent && failed > 0 {
					cancel() // it finds no room, however long it waits
				}
				defer cancel()
				switch _, err := r.Put(ctx, ns(fmt.Sprint("new", stored)), data(uint64(1000+stored), size), nil); {
				case err == nil:
					stored++
				case errors.Is(err, ErrNoRoom):
					failed++
				default:
					t.Fatal(err)
				}
			}
			lost := func() (st Stats, stores int) {
				st = r.Stats()
				return st, int(st.Shed) + int(st.Rejected)
			}
			for n := 0; n < 8; store() { // memory is full then
				_, n = lost()
			}
			for i := range blocks {
				before, _ := lost()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // far less than a load may wait for room
				v, err := r.Get(ctx, "ns", fmt.Sprint("cold", i))
				cancel()
				if err != nil || string(v.Bytes()) != string(data(uint64(i), size)) {
					t.Fatalf("load %d: %v, or other bytes", i, err)
				}
				v.Release()
				if after, _ := lost(); after.Shed != before.Shed || after.Lost != before.Lost || after.DirtyBlocks != before.DirtyBlocks {
					t.Errorf("load %d drops what is not written: %d shed, %d lost, %d dirty; before %d, %d, %d", i,
						after.Shed, after.Lost, after.DirtyBlocks, before.Shed, before.Lost, before.DirtyBlocks)
				}
				store()
			}
			st, stores := lost()
			if stores < blocks || spent != (st.Shed > 0) || spent == (st.Rejected > 0) || len(st.Losses) != 0 {
				t.Errorf("%d shed, %d refused; loads lost %v", st.Shed, st.Rejected, st.Losses)
			}
		})
	}
}
