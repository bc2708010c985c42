package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade"
	"cascadekv/cascade/residency"
	"cascadekv/gpu/direct"
	"cascadekv/internal/inject"
	"cascadekv/internal/region"
	"cascadekv/internal/resp"
)

// What a transfer reports of each key.
const (
	NotMoved  = 0 // not stored, or a miss
	Moved     = 1
	Cancelled = 2

	// Stuck is of a block that a ring has not moved in time: NotMoved, and the disk may write to its
	// extents, or read them, for as long as the region is there.
	Stuck = 3
)

const (
	// moveStep is copied between two looks at whether that is still wanted.
	moveStep = 1 << 20

	// A turn of a transfer moves up to turnBytes, or one block, of at most
	// turnKeys: so much is pinned at once, and so long others wait.
	turnBytes = 64 << 20
	turnKeys  = 1024

	// spreadBytes is what calling a helper pays from, tens of microseconds' work.
	spreadBytes = 512 << 10

	// turnPatience bounds the wait of a turn for room, and for what is slower
	// than memory; noPatience that of each turn after one that found no room.
	turnPatience = 5 * time.Second
	noPatience   = 100 * time.Millisecond
)

// Transfer is one STORE or LOAD: what is to be moved and how far that is. It
// belongs to whoever runs a turn of it.
type Transfer struct {
	pool   *Pool
	region *region.Region
	ns     string
	keys   []string
	layout region.Layout
	opt    Options
	store  bool // else load
	status []byte
	next   int  // keys before this are settled, or begun
	full   bool // there was no room for one

	ring    *direct.Ring           // of the region; nil: none
	part    *ringPart              // of that ring
	flights []*flight              // what the ring moves
	missed  []int                  // keys that were asked for, and that the ring did not read; of a store, those that were held, once their event has come
	held    []int                  // keys of a store that waits for its event
	placed  map[int]*cascade.Stage // of a store, what the ring has written of the keys in missed

	// repeats has, of a chain, for each key that stands in the command before
	// where it does first. Nil when there is no such key.
	repeats map[int]int
}

// Options are how blocks are stored; a load has Job and After only.
type Options struct {
	Parent    string    // key of the first block's parent
	Chain     bool      // each block is the parent of the next
	Prefix    bool      // of the names, see cascade.Entry
	Generated bool      // likewise
	Replace   bool      // what the keys name now
	Expires   time.Time // zero: never
	Job       int64     // number, of a transfer that is submitted
	After     After

	Hint cascade.Hint // of the blocks
}

// New returns a transfer between a region and keys of a namespace: of stored blocks
// into the region, or, if store is true, out of it into the store. layout has the
// place of each key's block. It fails for what no transfer may do.
func (p *Pool) New(r *Region, ns string, keys []string, layout region.Layout, o Options, store bool) (*Transfer, error) {
	t := &Transfer{pool: p, region: r.Region, ring: r.ring, part: &r.part, ns: ns, keys: keys, layout: layout, opt: o, store: store, status: make([]byte, len(keys))}
	if o.After.Word != 0 && r.ring == nil {
		return nil, errNoRing
	}
	t.findAgain()
	return t, t.check()
}

// Run makes all turns, or as many as there are before ctx ends, and returns the
// status of each key. The caller must then call Account.
func (t *Transfer) Run(ctx context.Context) []byte {
	for t.turn(ctx) {
	}
	return t.status
}

var errBlockSize = errors.New("block is too large")

// check refuses what a command must not ask for.
func (t *Transfer) check() error {
	for i := range t.keys {
		if n := t.layout.Size(i); n > resp.MaxBulk {
			return fmt.Errorf("%w: %d bytes, want at most %d", errBlockSize, n, resp.MaxBulk)
		}
		if t.store {
			if err := t.entry(i).Check(); err != nil {
				return err
			}
		}
	}
	if t.store {
		return nil
	}
	return t.layout.CheckDisjoint()
}

// findAgain notes the keys of a chain that stand in it more than once.
func (t *Transfer) findAgain() {
	if !t.opt.Chain || len(t.keys) < 2 {
		return
	}
	first := make(map[string]int, len(t.keys))
	for i, k := range t.keys {
		at, known := first[k]
		switch {
		case !known:
			first[k] = i
		case t.repeats == nil:
			t.repeats = map[int]int{i: at}
		default:
			t.repeats[i] = at
		}
	}
}

// entry is the name under which block i is stored. A key that stands in a chain
// repeats keeps the parent that it has where it stands first: under the key before
// it, it would be its own ancestor.
func (t *Transfer) entry(i int) cascade.Entry {
	e := cascade.Entry{Namespace: t.ns, Key: t.keys[i], Prefix: t.opt.Prefix || i < t.opt.Hint.Shared, Generated: t.opt.Generated, Expires: t.opt.Expires}
	if first, ok := t.repeats[i]; ok {
		i = first
	}
	switch {
	case i == 0:
		e.Parent = t.opt.Parent
	case t.opt.Chain:
		e.Parent = t.keys[i-1]
	}
	return e
}

// giveUp settles what was not begun as cancelled, or is to be tried again.
func (t *Transfer) giveUp() {
	t.status, t.missed, t.held, t.next = t.givenUp(), nil, nil, len(t.keys)
	t.dropPlaced()
}

// dropPlaced gives back what the ring has written and nobody has stored.
func (t *Transfer) dropPlaced() {
	for _, st := range t.placed {
		st.Abort()
	}
	t.placed = nil
}

// givenUp is the status of each key if the transfer ended now.
func (t *Transfer) givenUp() []byte {
	status := slices.Clone(t.status)
	for _, i := range slices.Concat(t.missed, t.held) {
		status[i] = Cancelled
	}
	for i := t.next; i < len(t.keys); i++ {
		status[i] = Cancelled
	}
	return status
}

// turn settles the next keys; false when none is left. Once ctx is cancelled
// that are all of them, soon.
func (t *Transfer) turn(ctx context.Context) (more bool) {
	if ctx.Err() != nil {
		t.giveUp()
		return false
	}
	at, again := t.nextKeys()
	wait := turnPatience
	if t.full {
		wait = noPatience
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	switch {
	case t.store && !again && t.opt.After.Word != 0:
		t.beginStore(ctx, at)
	case t.store:
		t.storeKeys(ctx, within, at)
	case again:
		t.loadKeys(ctx, within, at, true)
	default:
		t.loadKeys(ctx, within, t.begin(at), false)
	}
	if ctx.Err() != nil {
		t.giveUp()
	}
	return t.next < len(t.keys) || len(t.missed) > 0
}

// nextKeys takes the keys of the next turn, in order: again those in missed.
func (t *Transfer) nextKeys() (at []int, again bool) {
	rest := t.missed
	if again = len(rest) > 0; !again {
		rest = span(t.next, min(t.next+turnKeys, len(t.keys)))
	}
	bytes := int64(0)
	for n, i := range rest[:min(turnKeys, len(rest))] {
		if bytes += t.layout.Size(i); bytes > t.pool.turnBytes && n > 0 {
			break
		}
		at = rest[:n+1]
	}
	if again {
		t.missed = t.missed[len(at):]
	} else {
		t.next += len(at)
	}
	return at, again
}

// span has the numbers from ≤ i < to.
func span(from, to int) []int {
	all := make([]int, to-from)
	for k := range all {
		all[k] = from + k
	}
	return all
}

// spread is how the blocks of keys are copied.
func (t *Transfer) spread(keys []int) cascade.ParallelFor {
	bytes := int64(0)
	for _, i := range keys {
		if bytes += t.layout.Size(i); bytes >= spreadBytes {
			return t.pool.spread
		}
	}
	return alone
}

func alone(n int, do func(i int)) {
	for i := range n {
		do(i)
	}
}

// storeKeys stores keys: what the ring has written of them, and copies of the others. It waits for room until within ends;
// ctx ends when the transfer is cancelled.
func (t *Transfer) storeKeys(ctx, within context.Context, at []int) {
	items := make([]cascade.FuncItem, len(at))
	copied := make([]bool, len(at))
	hint := t.opt.Hint
	hint.Shared = 0
	for k, i := range at {
		placed := t.placed[i]
		items[k] = cascade.FuncItem{
			Entry: t.entry(i), Size: t.layout.Size(i), Replace: t.opt.Replace, Placed: placed,
			Write: func(st *cascade.Stage) error {
				if copied[k] = true; placed != nil {
					return nil
				}
				return t.copyIn(ctx, i, st)
			},
		}
		if placed != nil {
			defer placed.Abort() // where nothing was to be stored
			delete(t.placed, i)
		}
		if i < t.opt.Hint.Shared {
			hint.Shared++
		}
	}
	for k, err := range t.pool.store.PutBatchFunc(within, items, t.spread(at), hint) {
		i := at[k]
		switch {
		case err == nil:
			t.status[i] = Moved
			if copied[k] {
				t.pool.stored.add(items[k].Size)
			}
		case ctx.Err() != nil:
			t.status[i] = Cancelled
		default:
			t.full = t.full || errors.Is(err, cascade.ErrNoRoom)
			t.pool.log.Debug("block is not stored", "namespace", t.ns, "key", t.keys[i], "err", err)
		}
	}
}

// copyIn fills a stage with block i of the region.
func (t *Transfer) copyIn(ctx context.Context, i int, st *cascade.Stage) error {
	from := t.region.Cursor(t.layout.Block(i))
	crc := uint32(0)
	for step := range slices.Chunk(st.Bytes(), moveStep) {
		err := ctx.Err()
		if err == nil {
			crc, err = from.Read(crc, step)
		}
		if err != nil {
			return err
		}
		st.FilledAs(len(step), crc)
	}
	return nil
}

// loadKeys loads keys, as storeKeys stores them; again: those that the ring did not read, which were asked for before, and are counted here.
func (t *Transfer) loadKeys(ctx, within context.Context, at []int, again bool) {
	if len(at) == 0 {
		return
	}
	how := cascade.Unverified
	if again {
		how |= cascade.Uncounted
	}
	views, err := t.pool.store.GetBatch(within, t.ns, t.names(at), how)
	if err != nil {
		t.pool.losses.Add(residency.StepLookup, residency.ReasonOf(err), uint64(len(at)))
		return
	}
	defer t.finish(ctx, at)
	if again {
		cascade.CountGot(t.pool.store, t.ns, views)
	}
	ended := cascade.CopiesBegin(views)
	defer func() { ended(ctx.Err() == nil) }()
	t.spread(at)(len(views), func(k int) {
		i, v := at[k], views[k]
		switch {
		case ctx.Err() != nil:
			t.status[i] = Cancelled
		case v != nil:
			t.status[i] = t.load(ctx, within, i, v)
		}
		if v != nil {
			v.Release()
		}
	})
}

// names are the keys at these places.
func (t *Transfer) names(at []int) []string {
	if first, n := at[0], len(at); at[n-1] == first+n-1 { // they are in order
		return t.keys[first:][:n]
	}
	names := make([]string, len(at))
	for k, i := range at {
		names[k] = t.keys[i]
	}
	return names
}

// finish loses what was loaded by the last turn, if the load fails at its very end.
func (t *Transfer) finish(ctx context.Context, at []int) {
	if t.next < len(t.keys) {
		return
	}
	if err := inject.Wait(ctx, inject.Completion); err != nil {
		for _, i := range at {
			if t.status[i] == Moved {
				t.status[i] = NotMoved
				t.lost(residency.StepCompletion, residency.ReasonOf(err))
			}
		}
	}
}

// lost counts a key that was found and not loaded.
func (t *Transfer) lost(step, reason string) { t.pool.losses.Add(step, reason, 1) }

// Account counts what a load that is over did not bring although it could have: its
// client has gone and does not learn of it, or wanted no more.
func (t *Transfer) Account(gone bool) {
	if t.store {
		return
	}
	for _, s := range t.status {
		switch {
		case s == Cancelled:
			t.lost(residency.StepCompletion, "cancelled")
		case s == Moved && gone:
			t.lost(residency.StepCompletion, "untold")
		}
	}
}

// load copies the block of a view to where block i is wanted. If it turns out
// to be damaged, the copy below has a try.
func (t *Transfer) load(ctx, within context.Context, i int, v *cascade.View) byte {
	status, good := t.copyOut(ctx, i, v)
	if !good {
		below, err := t.pool.store.Get(within, t.ns, t.keys[i], cascade.Unverified, cascade.Uncounted)
		if err == nil {
			defer below.Release()
			status, good = t.copyOut(ctx, i, below)
		}
		if !good {
			t.lost(residency.StepCopy, "corrupt")
			return NotMoved
		}
	}
	if status == Moved {
		t.pool.loaded.add(t.layout.Size(i))
	}
	return status
}

// copyOut copies a view's bytes to block i of the region; good is false when
// they fail their checksum.
func (t *Transfer) copyOut(ctx context.Context, i int, v *cascade.View) (status byte, good bool) {
	if v.Size() != t.layout.Size(i) {
		t.lost(residency.StepCopy, "size")
		return NotMoved, true
	}
	to := t.region.Cursor(t.layout.Block(i))
	crc := uint32(0)
	for step := range slices.Chunk(v.Bytes(), moveStep) {
		if ctx.Err() != nil {
			return Cancelled, true
		}
		step, err := inject.Source(inject.Copy, step)
		if err == nil {
			crc, err = to.Write(crc, step)
		}
		if err != nil {
			t.pool.log.Debug("block is not loaded", "namespace", t.ns, "key", t.keys[i], "err", err)
			t.lost(residency.StepCopy, residency.ReasonOf(err))
			return NotMoved, true
		}
	}
	if !v.Verify(crc) {
		return NotMoved, false
	}
	return Moved, true
}
