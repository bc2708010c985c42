package cascade

import (
	"fmt"
	"testing"
	"time"
)

// TestStoreThreshold: with a threshold of two requests, what was put and never asked for again is
// dropped to make room, and counted; what was asked for, or is leased, is written and stays. A
// drain writes what is left, whatever it is.
func TestStoreThreshold(t *testing.T) {
	const size, once, again = 64 << 10, 120, 6
	j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
	j.open(1, 4<<20)
	r := j.ranks[0]
	l := *r.state.Limits.Load()
	l.StoreThreshold = 2
	r.state.Limits.Store(&l)
	put := func(key string, i int) { r.putKey(t, key, data(uint64(i), size)) }
	for i := range again {
		put(fmt.Sprint("again", i), 1000+i)
		r.wantAt(t, fmt.Sprint("again", i), data(uint64(1000+i), size))
	}
	put("leased", 2000)
	if !r.Lease(t.Context(), "ns", "leased", "somebody", time.Minute) {
		t.Fatal("no lease")
	}
	for i := range once {
		put(fmt.Sprint("once", i), i)
	}
	st := r.Stats()
	if durable, _ := j.durable(0); st.Unwritten == 0 || st.Lost != 0 || durable > again+1 {
		t.Fatalf("%d dropped unwritten, %d lost, %d in files", st.Unwritten, st.Lost, durable)
	}
	inMemory := 0
	for i := range once {
		if r.state.Mu.Lock(); r.state.Mu.Names.Get("ns", fmt.Sprint("once", i)) != nil {
			inMemory++
		}
		r.state.Mu.Unlock()
	}
	if inMemory == 0 || inMemory+int(st.Unwritten) != once {
		t.Errorf("%d are in memory and %d were dropped, of %d", inMemory, st.Unwritten, once)
	}
	for i := range again {
		r.wantAt(t, fmt.Sprint("again", i), data(uint64(1000+i), size))
	}
	r.wantAt(t, "leased", data(2000, size))
	dropped := r.Stats().Unwritten // to bring these back
	j.drainAll(0)
	if durable, _ := j.durable(0); durable != again+1+once-int(dropped) {
		t.Errorf("%d in files after a drain, want all that was in memory", durable)
	}
}
