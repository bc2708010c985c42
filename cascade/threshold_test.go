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
	r.limit(func(l *Limits) { l.StoreThreshold = 2 })
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
	drains := func(by int) {
		r.state.Mu.Lock()
		defer r.state.Mu.Unlock()
		r.state.Mu.Writes.Drains += by
	}
	drains(1)
	for i := range once { // what is in memory makes room for these
		put(fmt.Sprint("meanwhile", i), 3000+i)
	}
	if got := r.Stats().Unwritten; got != dropped {
		t.Errorf("%d are dropped while a drain is under way", got-dropped)
	}
	drains(-1)
	j.drainAll(0)
	if durable, _ := j.durable(0); durable != again+1+2*once-int(dropped) {
		t.Errorf("%d in files after a drain, want all that was in memory", durable)
	}
}

// TestStorePromptOnly: what is put as generated is dropped to make room and counted, unless another
// request asked for it, it is put again as part of a prompt or a prompt follows it; prompts are
// written. Without the limit all is, and a drain writes what is left.
func TestStorePromptOnly(t *testing.T) {
	const size, each, long = 64 << 10, 60, 24
	for _, only := range []bool{false, true} {
		j := &job{t: t, dir: t.TempDir(), segmentBytes: 1 << 20}
		j.open(1, 4<<20)
		r := j.ranks[0]
		r.limit(func(l *Limits) { l.StorePromptOnly = only })
		follow := func(parent, key string, i int, generated bool) {
			t.Helper()
			e := Entry{Namespace: "ns", Key: key, Parent: parent, Generated: generated}
			if _, err := r.Put(t.Context(), e, data(uint64(i), size), nil); err != nil {
				t.Fatal(err)
			}
		}
		put := func(key string, i int, generated bool) { t.Helper(); follow("", key, i, generated) }
		put("asked", 1000, true)
		r.wantAt(t, "asked", data(1000, size))
		put("again", 1001, true)
		put("prompt with the same bytes", 1001, false)
		before := ""
		for i := range long { // more than is written at once
			key := fmt.Sprint("turn", i)
			follow(before, key, 2000+i, i+1 < long)
			before = key
		}
		for key, marked := range map[string]bool{"turn0": false, "asked": true} {
			if got := why(t, r.Store, key).Generated; got != marked {
				t.Errorf("%s counts as generated: %v", key, got)
			}
		}
		for i := range each {
			put(fmt.Sprint("prompt", i), i, false)
			put(fmt.Sprint("answer", i), 500+i, true)
		}
		st := r.Stats()
		if only != (st.Generated > each/2) || st.Unwritten+st.Lost+st.Shed > 0 || st.Names != 2*each+3+long-int(st.Generated) {
			t.Errorf("%v: %d dropped as generated, %d unwritten, %d lost, %d shed, %d names", only, st.Generated, st.Unwritten, st.Lost, st.Shed, st.Names)
		}
		j.drainAll(0)
		if durable, _ := j.durable(0); durable != 2*each+2+long-int(st.Generated) {
			t.Errorf("%v: %d in files after a drain, %d dropped", only, durable, st.Generated)
		}
		for i := range each {
			r.wantAt(t, fmt.Sprint("prompt", i), data(uint64(i), size))
		}
		r.wantAt(t, "asked", data(1000, size))
		r.wantAt(t, "again", data(1001, size))
		for i := range long {
			r.wantAt(t, fmt.Sprint("turn", i), data(uint64(2000+i), size))
		}
	}
}
