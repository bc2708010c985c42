package segment

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// said is what a store was asked about one name, and what it promised.
type said struct {
	id      block.ID
	seq     uint64
	dropped bool
	waits   bool // recorded by Link or Unlink, so that Sync makes it durable
}

// ledger is what a caller knows: what it asked a store for and what the store
// acknowledged. A crash is judged by it.
type ledger struct {
	mu       sync.Mutex
	items    map[block.ID]tiers.Item
	acked    map[block.ID]bool // durable, and never evicted
	promised map[string]said   // newest durable record of a name
	asked    map[string][]said // records that may have become durable
	seq      uint64

	// namesVary: a segment could not be read when records were made, so that
	// what it says of names may come back.
	namesVary bool
	crashed   uint64 // records up to this seq were asked for before a crash
}

func (r said) String() string {
	if r.dropped {
		return fmt.Sprintf("%d: nothing", r.seq)
	}
	return fmt.Sprintf("%d: %.8v", r.seq, r.id)
}

func newLedger() *ledger {
	return &ledger{
		items: map[block.ID]tiers.Item{}, acked: map[block.ID]bool{},
		promised: map[string]said{}, asked: map[string][]said{},
	}
}

func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &ledger{
		items: maps.Clone(l.items), acked: maps.Clone(l.acked),
		promised: maps.Clone(l.promised), asked: maps.Clone(l.asked), seq: l.seq, crashed: l.crashed, namesVary: l.namesVary,
	}
	for k, v := range out.asked {
		out.asked[k] = slices.Clone(v)
	}
	return out
}

// next returns a sequence number.
func (l *ledger) next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	return l.seq
}

func (l *ledger) ask(key string, r said) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[key] = append(l.asked[key], r)
}

// takeBack forgets a request that was refused before anything was done.
func (l *ledger) takeBack(key string, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[key] = slices.DeleteFunc(l.asked[key], func(r said) bool { return r.seq == seq })
}

func (l *ledger) askPut(items []tiers.Item) {
	for _, it := range items {
		l.mu.Lock()
		l.items[it.Info.ID] = it
		l.mu.Unlock()
		for _, n := range it.Names {
			l.ask(n.Key, said{id: it.Info.ID, seq: n.Seq})
		}
	}
}

// ackPut notes that items and their names are durable.
func (l *ledger) ackPut(items []tiers.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		l.acked[it.Info.ID] = true
		for _, n := range it.Names {
			l.promiseLocked(n.Key, said{id: it.Info.ID, seq: n.Seq})
		}
	}
}

// ackNames notes that all records with a seq of at most upTo are durable. Those
// that a crash took from the store's memory are not.
func (l *ledger) ackNames(upTo uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, all := range l.asked {
		for _, r := range all {
			if r.waits && r.seq > l.crashed && r.seq <= upTo {
				l.promiseLocked(key, r)
			}
		}
	}
}

func (l *ledger) promiseLocked(key string, r said) {
	if r.seq >= l.promised[key].seq {
		l.promised[key] = r
	}
}

// forget notes that a block need not be there any more.
func (l *ledger) forget(id block.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[id] = false
}

// release takes back promises of names of an evicted block that came back: a
// file that only they kept may have been unlinked. Those in found stay.
func (l *ledger) release(id block.ID, found map[string]block.ID) {
	for key, p := range l.promised {
		if _, there := found[key]; p.id == id && !there {
			delete(l.promised, key)
		}
	}
}

// may reports whether a name may mean id, or nothing (a zero id).
func (l *ledger) may(key string, id block.ID) bool {
	p, promised := l.promised[key]
	outcomes := []said{{dropped: true}}
	if promised {
		outcomes[0] = p
	}
	for _, r := range l.asked[key] {
		if r.seq > p.seq {
			outcomes = append(outcomes, r)
		}
	}
	for _, r := range outcomes {
		if !r.dropped && r.id == id || id.IsZero() && (r.dropped || !l.acked[r.id]) {
			return true
		}
	}
	return false
}

// judge fails t unless what s recovered and serves is what the ledger allows.
// It returns the number of acknowledged blocks.
func (l *ledger) judge(t *testing.T, where string, s *opened) (acked int) {
	t.Helper()
	for id, it := range l.items {
		got, err := read(t.Context(), s, it)
		switch right := bytes.Equal(got, it.Data); {
		case err == nil && !right:
			t.Errorf("%s: wrong bytes of block %v", where, id)
		case err != nil && l.acked[id]:
			t.Errorf("%s: acknowledged block %v of %d bytes: %v", where, id, it.Info.Size, err)
		}
		if l.acked[id] {
			acked++
		}
	}
	for id, info := range s.blocks {
		it, ok := l.items[id]
		if !ok || it.Info != info {
			t.Errorf("%s: recovered %+v, which nobody stored", where, info)
		} else if _, err := read(t.Context(), s, it); err != nil {
			t.Errorf("%s: block %v was recovered but is not there: %v", where, id, err)
		}
	}
	for key := range l.asked {
		if id := s.names[key]; !l.namesVary && !l.may(key, id) {
			t.Errorf("%s: name %q means %v; promised %v, asked for %v", where, key, id, l.promised[key], l.asked[key])
		}
	}
	for key := range s.names {
		if _, ok := l.asked[key]; !ok {
			t.Errorf("%s: name %q was never recorded", where, key)
		}
	}
	return acked
}

// noLeak fails t if a file of this rank belongs to nobody: it is neither known
// to the store nor listed as left out.
func noLeak(t *testing.T, where string, fs *vfstest.Crash, s *opened) {
	t.Helper()
	settleDown(s)
	known := map[string]bool{}
	s.mu.Lock()
	for f := range s.files {
		known[f.path] = true
	}
	for _, err := range s.skipped {
		path, _, _ := bytes.Cut([]byte(err.Error()), []byte(": "))
		known[string(path)] = true
	}
	s.mu.Unlock()
	home, _ := s.lease.Current()
	used := map[string]bool{home: true} // directories that need a token
	for path := range known {
		used[filepath.Dir(path)] = true
	}
	for _, path := range fs.Files() {
		_, isToken := lease.ParseToken(filepath.Base(path))
		if !known[path] && !(isToken && used[filepath.Dir(path)]) {
			t.Errorf("%s: %s belongs to nobody", where, path)
		}
	}
}

// coders is what the stores of crash tests, of which there are thousands, encode
// with together.
var coders = sync.OnceValues(func() (*codec.Coder, error) { return codec.New(codec.Options{}) })

// crashOptions are those of a store on fs, with segments small enough that a
// script fills many.
func crashOptions(fs vfs.FS, incarnation uint64) Options {
	o := testOptions("/campaign", incarnation)
	o.FS, o.SegmentBytes, o.CloseWait, o.Compress = fs, 64<<10, time.Minute, true
	o.coder, _ = coders()
	return o
}

// judgeCrash opens what a crash left, holds it against the ledger, and sees
// that it can be used.
func (l *ledger) judgeCrash(t *testing.T, where string, left *vfstest.Crash, incarnation uint64) int {
	t.Helper()
	s := openStore(t, crashOptions(left, incarnation))
	acked := l.judge(t, where, s)
	late := testItem(60000+incarnation, 5000)
	if err := s.Put(t.Context(), late); err != nil {
		t.Errorf("%s: Put after recovery: %v", where, err)
	}
	wantBytes(t, s, late)
	noLeak(t, where, left, s)
	if err := s.Close(); err != nil {
		t.Errorf("%s: Close after recovery: %v", where, err)
	}
	if n := left.Handles(); n != 0 {
		t.Errorf("%s: %d files are open after Close", where, n)
	}
	return acked
}

// client drives a store by a script and keeps the ledger. With tolerant, a
// refused operation is one that was not acknowledged; otherwise it fails the
// test.
type client struct {
	t        *testing.T
	l        *ledger
	s        *opened
	tolerant bool
	refused  atomic.Int64
}

func (c *client) check(what string, err error) bool {
	if err == nil {
		return true
	}
	c.refused.Add(1)
	if !c.tolerant {
		c.t.Errorf("%s: %v", what, err)
	}
	return false
}

// put stores items, and once more if that is refused, as from DRAM.
func (c *client) put(items ...tiers.Item) {
	c.l.askPut(items)
	err := c.s.Put(c.t.Context(), items...)
	if err != nil && c.tolerant {
		err = c.s.Put(c.t.Context(), items...)
	}
	if c.check("Put", err) {
		c.l.ackPut(items)
	}
}

func (c *client) item(seed uint64, size int, names ...string) tiers.Item {
	var all []block.Name
	for _, n := range names {
		all = append(all, testName(n, c.l.next()))
	}
	return testItem(seed, size, all...)
}

func (c *client) link(key string, it tiers.Item) {
	seq := c.l.next()
	c.l.ask(key, said{id: it.Info.ID, seq: seq, waits: true})
	if !c.check("Link", c.s.Link(it.Info.ID, testName(key, seq))) {
		c.l.takeBack(key, seq)
	}
}

func (c *client) unlink(key string) {
	seq := c.l.next()
	c.l.ask(key, said{seq: seq, dropped: true, waits: true})
	if !c.check("Unlink", c.s.Unlink(block.ID{}, testName(key, seq))) {
		c.l.takeBack(key, seq)
	}
}

func (c *client) sync() {
	c.l.mu.Lock()
	upTo := c.l.seq
	c.l.mu.Unlock()
	if c.check("Sync", c.s.Sync(c.t.Context())) {
		c.l.ackNames(upTo)
	}
}

func (c *client) evict(items ...tiers.Item) {
	for _, it := range items {
		c.l.forget(it.Info.ID)
		c.check("Evict", c.s.Evict(it.Info.ID))
	}
	settleDown(c.s)
}

// merge moves what is alive out of half-dead segments. It promises nothing.
func (c *client) merge(budget int64) {
	_, err := c.s.Merge(c.t.Context(), budget, func([]block.ID) {})
	c.check("Merge", err)
	settleDown(c.s)
}

func (c *client) close() {
	c.l.mu.Lock()
	upTo := c.l.seq
	c.l.mu.Unlock()
	if c.check("Close", c.s.Close()) {
		c.l.ackNames(upTo)
	}
}

// serial makes calls of fn wait for each other: background work of the store
// uses files too.
func serial(fn func(vfs.Call)) func(vfs.Call) {
	var mu sync.Mutex
	return func(call vfs.Call) {
		mu.Lock()
		defer mu.Unlock()
		fn(call)
	}
}

// script opens two incarnations of one rank, one after the other, and has them
// do everything that changes files. It returns the second, not closed.
func script(t *testing.T, l *ledger, options func(incarnation uint64) Options) *opened {
	c := &client{t: t, l: l}
	c.run(options)
	return c.s
}

func (c *client) run(options func(incarnation uint64) Options) {
	c.open(options(1))
	first := c.firstRun()
	c.close()
	c.open(options(2))
	c.secondRun(first)
}

// open starts a store, again if it is refused. Names that the one before did
// not make durable are lost.
func (c *client) open(o Options) {
	c.l.mu.Lock()
	c.l.crashed = c.l.seq
	c.l.mu.Unlock()
	for attempt := 0; ; attempt++ {
		s, err := Open(o)
		if err == nil {
			if err = s.Recover(func(tiers.Entry) error { return nil }); err == nil {
				c.s = &opened{Store: s}
				return
			}
			s.Close()
		}
		if c.check("open", err); attempt > 3 {
			c.t.Fatal(err)
		}
	}
}

// firstRun puts one by one and together, rotates by size, moves and withdraws
// names, empties a segment and stores again what it evicted.
func (c *client) firstRun() []tiers.Item {
	var all []tiers.Item
	for i, size := range []int{5000, 28, 0, 513, 30000, 4096} {
		it := c.item(uint64(i), size, fmt.Sprint("n", i))
		c.put(it)
		all = append(all, it)
	}
	batch := []tiers.Item{c.item(10, 9000, "b0", "b1"), c.item(11, 300), c.item(12, 20000, "b2")}
	c.put(batch...)
	c.link("n0", all[4])
	c.link("extra", all[1])
	c.unlink("n3")
	c.sync()
	for i := range 4 {
		it := c.item(uint64(20+i), 24000, fmt.Sprint("r", i))
		c.put(it)
		all = append(all, it)
	}
	c.evict(all[0], all[4])
	c.evict(batch...)
	c.put(all[4])
	c.unlink("r1")
	c.link("r2", all[6])
	return all
}

// secondRun is the next incarnation: it works on what the first left, group
// commits, empties old segments with names in them, and is not closed.
func (c *client) secondRun(first []tiers.Item) {
	var wg sync.WaitGroup
	for i := range 6 {
		it := c.item(uint64(30+i), 7000, fmt.Sprint("g", i))
		wg.Go(func() { c.put(it) })
	}
	wg.Wait()
	c.unlink("n5")
	c.link("n1", testItem(32, 7000))
	c.sync()
	c.evict(first[1:4]...)
	c.evict(first[5:]...)
	for i := range 4 {
		c.put(c.item(uint64(40+i), 16000, fmt.Sprint("r", i)))
	}
	c.unlink("g0")
	c.sync()
	c.evict(testItem(40, 16000), testItem(41, 16000))
	c.merge(0)
	c.merge(1)
	c.put(c.item(50, 100, "last"))
}

// thirdRun is a short one after a crash.
func (c *client) thirdRun() {
	c.put(c.item(70, 9000, "n0"), c.item(71, 40))
	c.unlink("r2")
	c.sync()
	for id := range c.s.blocks {
		if it, ok := c.l.items[id]; ok && it.Info.Size > 20000 {
			c.evict(it)
		}
	}
	c.merge(1)
	c.put(c.item(72, 50000, "n1"))
	c.put(c.item(73, 20000))
}
