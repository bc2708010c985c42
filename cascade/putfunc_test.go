package cascade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/cascade/residency"
)

// filled is an item with the bytes p, and counts how often it is asked for them.
func filled(key, parent string, p []byte, asked *atomic.Int64) FuncItem {
	return FuncItem{
		Entry: Entry{Namespace: "ns", Key: key, Parent: parent}, Size: int64(len(p)),
		Write: func(st *Stage) error {
			asked.Add(1)
			for at := 0; at < len(p); { // piecemeal, as regions do
				n := copy(st.Bytes()[at:], p[at:min(len(p), at+1000)])
				st.Filled(n)
				at += n
			}
			return nil
		},
	}
}

// together is a Spread that makes all calls at once.
func together(n int, do func(i int)) {
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() { do(i) })
	}
	calls.Wait()
}

// Blocks are filled at once, as far as their bytes may be staged at once, and
// chained in their order.
func TestPutFromFillsTogether(t *testing.T) {
	const size, blocks = 450_000, 7
	r := newRig(t, 16<<20, false)
	abreast := int(min(putAtOnce, r.MemoryCapacity()/16) / size)
	if abreast != 2 {
		t.Fatalf("%d blocks at once: the test is made for 2", abreast)
	}
	var asked atomic.Int64
	items := make([]FuncItem, blocks)
	for i := range items {
		parent := ""
		if i > 0 {
			parent = fmt.Sprint(i - 1)
		}
		items[i] = filled(fmt.Sprint(i), parent, data(uint64(i), size), &asked)
	}
	var groups []int
	errs := r.PutBatchFunc(t.Context(), items, func(n int, do func(i int)) {
		groups = append(groups, n)
		together(n, do)
	}, Hint{})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(groups, []int{2, 2, 2, 1}) {
		t.Errorf("groups of %v blocks", groups)
	}
	for i := range items {
		r.want(fmt.Sprint(i), data(uint64(i), size))
		if info, ok := r.Stat(t.Context(), "ns", fmt.Sprint(i)); !ok || int(info.Depth) != i {
			t.Errorf("block %d: %+v", i, info)
		}
	}
}

func TestPutFromStoresWhatIsNotThere(t *testing.T) {
	r := newRig(t, 16<<20, false)
	var asked atomic.Int64
	a, b := data(1, 50_000), data(2, 70_000)
	items := []FuncItem{filled("a", "", a, &asked), filled("b", "a", b, &asked)}
	for _, err := range r.PutBatchFunc(t.Context(), items, together, Hint{}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if asked.Load() != 2 {
		t.Fatalf("%d blocks were asked for", asked.Load())
	}
	r.want("a", a)
	r.want("b", b)
	if info, ok := r.Stat(t.Context(), "ns", "b"); !ok || info.Parent != "a" || info.Depth != 1 {
		t.Errorf("b: %+v", info)
	}

	// Again: nothing is copied, unless it has another size or is told to.
	c := data(3, 40_000)
	items = append(items, filled("a", "", c, &asked))
	if errs := r.PutBatchFunc(t.Context(), items, together, Hint{}); errors.Join(errs...) != nil || asked.Load() != 3 {
		t.Errorf("%v, %d blocks were asked for", errs, asked.Load())
	}
	r.want("a", c)
	d := data(4, 40_000)
	items = []FuncItem{filled("a", "", d, &asked)}
	items[0].Replace = true
	if errs := r.PutBatchFunc(t.Context(), items, together, Hint{}); errors.Join(errs...) != nil || asked.Load() != 4 {
		t.Errorf("%v, %d blocks were asked for", errs, asked.Load())
	}
	r.want("a", d)
}

func TestPutFromGoesOnBehindAFailure(t *testing.T) {
	r := newRig(t, 16<<20, false)
	var asked atomic.Int64
	lost := errors.New("lost")
	items := []FuncItem{
		filled("a", "", data(1, 5000), &asked),
		{Entry: Entry{Namespace: "ns", Key: "b", Parent: "a"}, Size: 5000, Write: func(*Stage) error { return lost }},
		{Entry: Entry{Namespace: "ns", Key: "c", Parent: "b"}, Size: 5000, Write: func(*Stage) error { return nil }}, // not filled
		filled("d", "c", data(2, 5000), &asked),
		filled("e", "e", nil, &asked),
		{Entry: Entry{Namespace: "ns", Key: "f", Parent: "d"}, Size: 64 << 20, Write: func(*Stage) error { panic("no room") }},
		filled("g", "d", data(3, 5000), &asked),
	}
	errs := r.PutBatchFunc(t.Context(), items, together, Hint{})
	for i, want := range []error{nil, lost, ErrBadEntry, nil, ErrBadEntry, ErrTooLarge, nil} {
		if !errors.Is(errs[i], want) || want == nil && errs[i] != nil {
			t.Errorf("item %d: %v, want %v", i, errs[i], want)
		}
	}
	if r.Len("ns") != 3 || asked.Load() != 3 {
		t.Errorf("%d names, %d blocks were asked for", r.Len("ns"), asked.Load())
	}
	r.settled() // no view is left
	// The rooms of what failed came back: as many blocks as fit still fit.
	for i := range 200 {
		if errs := r.PutBatchFunc(t.Context(), []FuncItem{filled(fmt.Sprint(i), "", data(uint64(i), 60_000), &asked)}, together, Hint{}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
}

// A chain that is stored already becomes as young as one that is put.
func TestPutFromRefreshes(t *testing.T) {
	for name, chained := range map[string]bool{"chain": true, "single names": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 16<<20, false, func(o *Options) { o.Policy = "lru" })
			var asked atomic.Int64
			var items []FuncItem
			for i := range 4 {
				parent := ""
				if chained && i > 0 {
					parent = fmt.Sprint("old", i-1)
				}
				items = append(items, filled(fmt.Sprint("old", i), parent, data(uint64(i), 1<<20), &asked))
			}
			r.PutBatchFunc(t.Context(), items, together, Hint{})
			next := 0
			press := func() { // half of the memory
				for range 8 {
					next++
					if errs := r.PutBatchFunc(t.Context(), []FuncItem{filled(fmt.Sprint("new", next), "", data(uint64(100+next), 1<<20), &asked)}, together, Hint{}); errs[0] != nil {
						t.Errorf("new%d: %v", next, errs[0])
					}
				}
			}
			for range 4 {
				press()
				asked.Store(0)
				r.PutBatchFunc(t.Context(), items, together, Hint{})
				if asked.Load() != 0 {
					t.Fatalf("%d of 4 blocks were gone", asked.Load())
				}
			}
			for range 4 {
				press()
			}
			asked.Store(0)
			if r.PutBatchFunc(t.Context(), items, together, Hint{}); asked.Load() == 0 {
				t.Error("nothing was ever evicted: the test shows nothing")
			}
		})
	}
}

// A store that is never quiet computes no ids; what waits for one leaves as
// everything else does.
func TestWhatWaitsForAnIDCanLeave(t *testing.T) {
	r := newRig(t, 16<<20, false, func(o *Options) { o.Policy = "lru" })
	r.Store.state.Activity.Begin()
	defer r.Store.state.Activity.End()
	var asked atomic.Int64
	put := func(key, parent string, p []byte) {
		t.Helper()
		if errs := r.PutBatchFunc(t.Context(), []FuncItem{filled(key, parent, p, &asked)}, together, Hint{}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	put("old0", "", data(0, 1<<20))
	time.Sleep(2 * residency.QuietFor) // the completer takes it up
	put("old1", "old0", data(1, 1<<20))
	for i := range 32 {
		put(fmt.Sprint("new", i), "", data(uint64(100+i), 1<<20))
	}
	for _, key := range []string{"old0", "old1"} {
		if _, err := r.Get(t.Context(), "ns", key); !errors.Is(err, ErrMiss) {
			t.Errorf("%s is held: %v", key, err)
		}
	}
}

func TestUnverifiedLeavesChecksums(t *testing.T) {
	r := newRig(t, 16<<20, false)
	var asked atomic.Int64
	p := data(1, 9000)
	r.PutBatchFunc(t.Context(), []FuncItem{filled("a", "", p, &asked)}, together, Hint{})
	views, err := r.GetBatch(t.Context(), "ns", []string{"a", "absent"}, Unverified)
	if err != nil || views[0] == nil || views[1] != nil || !bytes.Equal(views[0].Bytes(), p) {
		t.Fatal(views, err)
	}
	views[0].Bytes()[17] ^= 1
	views[0].Release()
	if views, err = r.GetBatch(context.Background(), "ns", []string{"a"}, Unverified); err != nil || views[0] == nil {
		t.Fatal("the checksum was looked at: ", err)
	}
	if views[0].Verify(0) {
		t.Error("a wrong checksum is right")
	}
	views[0].Release()
	if _, err := r.Get(t.Context(), "ns", "a"); !errors.Is(err, ErrMiss) {
		t.Errorf("a damaged block is left: %v", err)
	}
}

// Room for one block is enough to store several: none of a PutFrom waits for
// room that only another of it could give.
func TestPutFromWaitsForRoomWithNothingInHand(t *testing.T) {
	const size = 400_000 // two at once are allowed
	r := newRig(t, 16<<20, false)
	var others []*Stage
	for {
		st, err := r.Stage(impatient(t), size)
		if errors.Is(err, ErrNoRoom) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		others = append(others, st)
	}
	others[0].Abort()
	rejected := r.Stats().Rejected
	var asked atomic.Int64
	items := make([]FuncItem, 5)
	for i := range items {
		items[i] = filled(fmt.Sprint(i), "", data(uint64(i), size), &asked)
	}
	if err := errors.Join(r.PutBatchFunc(t.Context(), items, together, Hint{})...); err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("%d blocks were asked for", n)
	}
	if n := r.Stats().Rejected - rejected; n != 0 {
		t.Errorf("%d blocks count as rejected", n)
	}
	r.want("4", data(4, size))
	for _, st := range others[1:] {
		st.Abort()
	}
}
