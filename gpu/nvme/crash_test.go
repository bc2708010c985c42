package nvme

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// history is what a run did to a tier, as far as it matters to what may be found after its end at any moment.
type history struct {
	mu      sync.Mutex
	content map[block.ID]tiers.Item
	sure    map[block.ID]bool   // blocks that are durable, and were not evicted since
	is      map[string]string   // names now: block and Seq, "" for none
	may     map[string][]string // what may be found of a name: what the last Sync saw, or anything since
	layout  []uint64            // Seqs that may be found
	arrived int                 // blocks that were written to a lot
}

// set notes what a name is from the next operation on.
func (h *history) set(key, is string, also ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is[key] = is
	h.may[key] = append(append(h.may[key], is), also...)
}

// synced notes that all is durable.
func (h *history) synced(tr *Tier) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.content {
		if _, err := tr.Place(id); err == nil {
			h.sure[id] = true
		}
	}
	for key, is := range h.is {
		h.may[key] = []string{is}
	}
	h.layout = h.layout[len(h.layout)-1:]
}

// gone notes that a block, and its names, will be no more.
func (h *history) gone(id block.ID) {
	h.mu.Lock()
	delete(h.sure, id)
	h.mu.Unlock()
	for key, is := range h.is {
		if strings.HasPrefix(is, id.String()) {
			h.set(key, "")
		}
	}
}

// copy is what is known at one moment.
func (h *history) copy() *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := &history{sure: maps.Clone(h.sure), may: map[string][]string{}, layout: slices.Clone(h.layout)}
	for key, may := range h.may {
		c.may[key] = slices.Clone(may)
	}
	return c
}

func stand(id block.ID, seq uint64) string { return fmt.Sprint(id, "@", seq) }

// run does random operations, and returns when it has done so many.
func (h *history) run(t *testing.T, tr *Tier, rnd *rand.Rand, life, steps int) {
	seq, next := uint64(1_000_000*(life+1)), uint64(100_000*(life+1))
	some := func() (block.ID, bool) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		for id := range tr.mu.blocks {
			return id, true
		}
		return block.ID{}, false
	}
	evict := func(id block.ID) {
		h.gone(id)
		noError(t, tr.Evict(id))
	}
	make := func() tiers.Item {
		next++
		seq += 10
		it := item(next, rnd.IntN(3*unit), name(fmt.Sprint("k", rnd.IntN(12)), seq))
		h.mu.Lock()
		h.content[it.Info.ID] = it
		h.mu.Unlock()
		h.set(it.Names[0].Key, stand(it.Info.ID, seq), "") // the block may be missing, and no older record comes back
		return it
	}
	var l *Lot // once a group of containers is empty
	defer func() {
		if l != nil {
			l.Close()
		}
	}()
	for range steps {
		for u := tr.Usage(); u.Used > u.Capacity/2; u = tr.Usage() {
			id, _ := some()
			evict(id)
		}
		switch op := rnd.IntN(20); {
		case op < 4:
			noError(t, tr.Put(t.Context(), make()))
			h.synced(tr)
		case op < 7:
			noError(t, commit(tr, make()))
		case op < 9:
			if l == nil {
				l = tr.TakeLot()
			}
			if it := make(); l == nil || l.lot.Free() < 3 {
				noError(t, commit(tr, it))
			} else {
				noError(t, commitIn(t, tr, l, it))
				h.arrived++
			}
		case op < 10: // by the id that it has at last only later
			it := make()
			early := it
			early.Info.ID = block.Provisional(next)
			h.mu.Lock()
			h.content[early.Info.ID] = tiers.Item{Info: early.Info, Data: it.Data}
			h.mu.Unlock()
			h.set(it.Names[0].Key, stand(early.Info.ID, it.Names[0].Seq))
			noError(t, commit(tr, early))
			if rnd.IntN(2) == 0 {
				noError(t, tr.Sync(t.Context()))
				h.synced(tr)
			}
			h.mu.Lock()
			delete(h.sure, early.Info.ID)
			h.mu.Unlock()
			h.set(it.Names[0].Key, stand(it.Info.ID, it.Names[0].Seq))
			noError(t, tr.Rename(early.Info.ID, it.Info.ID))
		case op < 12:
			if id, ok := some(); ok {
				evict(id)
			}
		case op < 15:
			if id, ok := some(); ok {
				seq += 10
				key := fmt.Sprint("k", rnd.IntN(12))
				h.set(key, stand(id, seq), "")
				noError(t, tr.Link(id, name(key, seq)))
			}
		case op < 18:
			seq += 10
			key := fmt.Sprint("k", rnd.IntN(12))
			h.set(key, "")
			noError(t, tr.Unlink(block.ID{}, name(key, seq)))
		case op < 19:
			seq += 10
			h.mu.Lock()
			h.layout = append(h.layout, seq)
			h.mu.Unlock()
			noError(t, tr.SetLayout("ns", seq, block.Layout{Tokens: uint32(seq)}))
		default:
			if rnd.IntN(2) == 0 { // the log is written anew
				tr.mu.Lock()
				tr.mu.changes.drop()
				tr.mu.Unlock()
			}
			noError(t, tr.Sync(t.Context()))
			h.synced(tr)
		}
	}
}

// check compares what a tier has recovered with what it may have.
func (h *history) check(t *testing.T, what string, tr *Tier, content map[block.ID]tiers.Item) {
	t.Helper()
	found := map[string]string{}
	var blocks []tiers.Item
	have := map[block.ID]bool{}
	noError(t, tr.Recover(func(e tiers.Entry) error {
		it, ok := content[e.Info.ID]
		if !ok || it.Info != e.Info {
			t.Errorf("%s: block %+v was never stored", what, e.Info)
			return nil
		}
		blocks, have[e.Info.ID] = append(blocks, it), true
		for _, n := range e.Names {
			found[n.Key] = stand(e.Info.ID, n.Seq)
		}
		return nil
	}))
	wantBlocks(t, tr, blocks...)
	for id := range h.sure {
		if !have[id] {
			t.Errorf("%s: block %v is gone", what, id)
		}
	}
	for key, may := range h.may {
		if !slices.Contains(may, found[key]) {
			t.Errorf("%s: name %q is %q, and may be one of %q", what, key, found[key], may)
		}
	}
	for key := range found {
		if h.may[key] == nil {
			t.Errorf("%s: name %q is %q, and never was", what, key, found[key])
		}
	}
	if seq, l := tr.Layout("ns"); !slices.Contains(h.layout, seq) || l.Tokens != uint32(seq) {
		t.Errorf("%s: layout %v of %d, want one of %v", what, l, seq, h.layout)
	}
	if h := tr.Stats().Health; h.Reads.Corrupt > 0 {
		t.Errorf("%s: %+v", what, h)
	}
	if t.Failed() {
		t.FailNow()
	}
}

// TestCrash ends the process, the node or the power before any operation of the file system. What is found has the
// bytes that were put; what was durable is there, unless it was removed since; what was removed durably is not back.
func TestCrash(t *testing.T) {
	seeds := uint64(5)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		fs, o := rig(t)
		rnd := rand.New(rand.NewPCG(seed, 6))
		h := &history{content: map[block.ID]tiers.Item{}, sure: map[block.ID]bool{}, is: map[string]string{}, may: map[string][]string{}, layout: []uint64{0}}
		type moment struct {
			*history
			fs   *vfstest.Crash
			what string
		}
		var moments []moment
		var mu sync.Mutex // the writer has several workers
		armed, ops, cuts := false, 0, rand.New(rand.NewPCG(seed, 7))
		o.FS = fs.Watch(func(c vfs.Call) {
			mu.Lock()
			defer mu.Unlock()
			if ops++; !armed || c.Op == vfs.OpRead || cuts.IntN(8) > 0 {
				return
			}
			for cut, name := range map[vfstest.Cut]string{vfstest.CutProcess: "process", vfstest.CutNode: "node", vfstest.CutPower: "power"} {
				// What is known is copied first: what comes meanwhile is another thing that may be found.
				at := h.copy()
				moments = append(moments, moment{at, fs.After(cut, cuts.Uint64()), fmt.Sprintf("seed %d, %s before operation %d, %s of %s", seed, name, ops, c.Op, c.Path)})
			}
		})
		arm := func(on bool) {
			mu.Lock()
			defer mu.Unlock()
			armed = on
		}
		for life := range 3 { // starts are cut too
			arm(life > 0 || seed%2 > 0)
			tr, err := Open(t.Context(), o)
			noError(t, err)
			h.check(t, fmt.Sprintf("seed %d, life %d", seed, life), tr, h.content)
			if seed%2 == 0 { // otherwise the pool grows meanwhile
				noError(t, tr.WaitGrown(t.Context()))
			}
			arm(true)
			h.run(t, tr, rnd, life, 60)
			if err := tr.Close(); err != nil {
				t.Fatal(err)
			}
			arm(false)
			for id := range h.content { // Close has made durable what is there
				if _, gone := tr.mu.blocks[id]; gone {
					h.sure[id] = true
				}
			}
			for key, is := range h.is {
				h.may[key] = []string{is}
			}
			h.layout = h.layout[len(h.layout)-1:]
		}
		if len(moments) < 100 || h.arrived == 0 {
			t.Errorf("%d moments, %d blocks in a lot", len(moments), h.arrived)
		}
		for i, m := range moments {
			o.FS = m.fs
			tr := mustOpen(t, o)
			m.check(t, m.what, tr, h.content)
			if i%10 == 0 { // it is as good as before
				more := item(uint64(i), 2*unit, name("more", 1))
				noError(t, tr.Put(t.Context(), more), tr.Close())
				tr = mustOpen(t, o)
				wantBlocks(t, tr, more)
			}
			noError(t, tr.Close())
		}
	}
}

// TestKill kills a process that stores and removes blocks and names, as kill -9 does, at random moments, and opens
// what it left.
func TestKill(t *testing.T) {
	if dir := os.Getenv("CASCADE_TEST_NVME"); dir != "" {
		killed(t, dir)
		return
	}
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	dir, found := t.TempDir(), 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "CASCADE_TEST_NVME="+dir, fmt.Sprintf("CASCADE_TEST_ROUND=%d", round))
		out, err := cmd.StdoutPipe()
		noError(t, err, cmd.Start())
		named := map[uint64]bool{} // blocks that must be there: with their names, or without
		lines := bufio.NewScanner(out)
		left := 3 + rand.IntN(150)
		for lines.Scan() {
			verb, text, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.ParseUint(text, 10, 64)
			switch {
			case err != nil: // of the test itself
			case verb == "stored":
				named[n] = true
			case verb == "unnamed":
				named[n] = false
			case verb == "removing":
				delete(named, n)
			}
			if left--; left == 0 {
				noError(t, cmd.Process.Kill())
			}
		}
		if err := cmd.Wait(); err == nil || left > 0 {
			t.Fatalf("round %d: the process ended by itself: %v", round, err)
		}
		tr := mustOpen(t, inTest(dir, 64*unit))
		names := recoveredNames(t, tr)
		for n, is := range named {
			it := killItem(n)
			wantBlocks(t, tr, it)
			if _, ok := names[it.Names[0].Key]; ok != is {
				t.Errorf("round %d: block %d has its name: %v, want %v", round, n, ok, is)
			}
		}
		noError(t, tr.Recover(func(e tiers.Entry) error { // the next process begins with none
			if _, err := read(t.Context(), tr, tiers.Item{Info: e.Info}); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
			return tr.Evict(e.Info.ID)
		}))
		found += len(names)
		noError(t, tr.Close())
	}
	if found == 0 { // a single round may end before it has any
		t.Error("no name was found in any round")
	}
}

func killItem(n uint64) tiers.Item {
	return item(n, int(n*7919%(2*unit)), name(fmt.Sprint("k", n), 1))
}

// killed is the process that TestKill kills.
func killed(t *testing.T, dir string) {
	round, err := strconv.ParseUint(os.Getenv("CASCADE_TEST_ROUND"), 10, 64)
	noError(t, err)
	tr := mustOpen(t, inTest(dir, 64*unit))
	rnd := rand.New(rand.NewPCG(round, 1))
	var have []uint64
	for next := 1000 * round; next < 1000*round+500; next++ {
		for len(have) > 15 {
			i := rnd.IntN(len(have))
			fmt.Printf("removing %d\n", have[i])
			noError(t, tr.Evict(killItem(have[i]).Info.ID))
			have = slices.Delete(have, i, i+1)
		}
		it := killItem(next)
		noError(t, tr.Put(t.Context(), it))
		fmt.Printf("stored %d\n", next)
		have = append(have, next)
		if rnd.IntN(3) == 0 {
			fmt.Printf("removing %d\n", next) // its name, for now
			noError(t, tr.Unlink(it.Info.ID, name(it.Names[0].Key, 2)), tr.Sync(t.Context()))
			fmt.Printf("unnamed %d\n", next)
		}
	}
	t.Fatal("not killed")
}
