package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/region"
)

// What a transfer says of each key.
const (
	statusNot       = 0 // not stored, or a miss
	statusDone      = 1
	statusCancelled = 2
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

// transfer is one STORE or LOAD: what is to be moved and how far that is. It
// belongs to whoever runs a turn of it.
type transfer struct {
	srv    *Server
	region *region.Region
	ns     string
	keys   []string
	layout region.Layout
	opt    transferOptions
	store  bool // else load
	status []byte
	next   int  // keys before this are settled
	full   bool // there was no room for one

	// again has, of a chain, for each key that stands in the command before
	// where it does first. Nil when there is no such key.
	again map[int]int
}

// transferOptions are the words before KEYS.
type transferOptions struct {
	parent                 string
	chain, prefix, replace bool
	expires                time.Time
	job                    int64 // -1: none
}

// parseTransfer reads what follows the extents of a STORE or LOAD. bad is the
// text of the reply.
func parseTransfer(args [][]byte, store bool, now time.Time) (o transferOptions, keys [][]byte, bad string) {
	o.job = -1
	for i := 0; i < len(args); i++ {
		word := strings.ToUpper(string(args[i]))
		switch {
		case word == "KEYS" && i+1 < len(args):
			return o, args[i+1:], ""
		case word == "CHAIN" && store:
			o.chain = true
			continue
		case word == "PREFIX" && store:
			o.prefix = true
			continue
		case word == "REPLACE" && store:
			o.replace = true
			continue
		}
		i++
		if i == len(args) {
			break
		}
		switch value := string(args[i]); {
		case word == "JOB":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 0 {
				return o, nil, "ERR a job is a number from 0 on"
			}
			o.job = n
		case word == "PARENT" && store:
			o.parent = value
		case word == "PX" && store:
			if o.expires, bad = expiry("PX", value, now); bad != "" {
				return o, nil, bad
			}
		default:
			return o, nil, "ERR syntax error"
		}
	}
	return o, nil, "ERR syntax error"
}

func cmdCascadeStore(c *conn, args [][]byte) { c.transfer(args, true) }
func cmdCascadeLoad(c *conn, args [][]byte)  { c.transfer(args, false) }

// transfer serves STORE and LOAD: at once, or as a job.
func (c *conn) transfer(args [][]byte, store bool) {
	_, at := c.region(args[1])
	if at == nil {
		return
	}
	o, keys, bad := parseTransfer(args[4:], store, time.Now())
	if bad != "" {
		c.wr.Error(bad)
		return
	}
	layout, err := region.ParseLayout(args[3], len(keys), at.Size())
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	t := &transfer{
		srv: c.srv, region: at.Region, ns: string(args[2]), keys: make([]string, len(keys)), layout: layout,
		opt: o, store: store, status: make([]byte, len(keys)),
	}
	for i, k := range keys {
		t.keys[i] = string(k)
	}
	t.findAgain()
	if err := t.check(); err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	if o.job >= 0 {
		c.submit(t, at)
		return
	}
	c.runNow(t)
	c.wr.Bulk(t.status)
}

// runNow makes all turns of a transfer, or as many as the client waits for.
func (c *conn) runNow(t *transfer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer c.sock.OnHangUp(cancel)()
	if c.sock.HungUp() {
		cancel() // before anything is done, and not soon after
	}
	for t.turn(ctx) {
	}
}

var errBlockSize = errors.New("block is too large")

// check refuses what a command must not ask for.
func (t *transfer) check() error {
	for i := range t.keys {
		if n := t.layout.Size(i); n > maxBulk {
			return fmt.Errorf("%w: %d bytes, want at most %d", errBlockSize, n, maxBulk)
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
func (t *transfer) findAgain() {
	if !t.opt.chain || len(t.keys) < 2 {
		return
	}
	first := make(map[string]int, len(t.keys))
	for i, k := range t.keys {
		at, known := first[k]
		switch {
		case !known:
			first[k] = i
		case t.again == nil:
			t.again = map[int]int{i: at}
		default:
			t.again[i] = at
		}
	}
}

// entry is the name under which block i is stored. A key that stands in a chain
// again keeps the parent that it has where it stands first: under the key before
// it, it would be its own ancestor.
func (t *transfer) entry(i int) cascade.Entry {
	e := cascade.Entry{Namespace: t.ns, Key: t.keys[i], Prefix: t.opt.prefix, Expires: t.opt.expires}
	if first, ok := t.again[i]; ok {
		i = first
	}
	switch {
	case i == 0:
		e.Parent = t.opt.parent
	case t.opt.chain:
		e.Parent = t.keys[i-1]
	}
	return e
}

// giveUp settles what was not begun as cancelled.
func (t *transfer) giveUp() {
	for ; t.next < len(t.keys); t.next++ {
		t.status[t.next] = statusCancelled
	}
}

// turn settles the next keys; false when none is left. Once ctx is cancelled
// that are all of them, soon.
func (t *transfer) turn(ctx context.Context) (more bool) {
	if ctx.Err() != nil {
		t.giveUp()
		return false
	}
	from := t.next
	for bytes := int64(0); t.next < len(t.keys) && t.next-from < turnKeys; t.next++ {
		if bytes += t.layout.Size(t.next); bytes > t.srv.jobs.turnBytes && t.next > from {
			break
		}
	}
	wait := turnPatience
	if t.full {
		wait = noPatience
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if t.store {
		t.storeKeys(ctx, within, from, t.next)
	} else {
		t.loadKeys(ctx, within, from, t.next)
	}
	if ctx.Err() != nil {
		t.giveUp()
	}
	return t.next < len(t.keys)
}

// spread is how the blocks of keys from ≤ i < to are copied.
func (t *transfer) spread(from, to int) cascade.Spread {
	bytes := int64(0)
	for i := from; i < to && bytes < spreadBytes; i++ {
		bytes += t.layout.Size(i)
	}
	if bytes < spreadBytes {
		return alone
	}
	return t.srv.jobs.spread
}

func alone(n int, do func(i int)) {
	for i := range n {
		do(i)
	}
}

// storeKeys stores keys from ≤ i < to. It waits for room until within ends;
// ctx ends when the transfer is cancelled.
func (t *transfer) storeKeys(ctx, within context.Context, from, to int) {
	items := make([]cascade.FillItem, to-from)
	copied := make([]bool, to-from)
	for k := range items {
		i := from + k
		items[k] = cascade.FillItem{
			Entry: t.entry(i), Size: t.layout.Size(i), Replace: t.opt.replace,
			Fill: func(st *cascade.Stage) error {
				copied[k] = true
				return t.copyIn(ctx, i, st)
			},
		}
	}
	for k, err := range t.srv.opt.Store.PutFrom(within, items, t.spread(from, to)) {
		switch {
		case err == nil:
			t.status[from+k] = statusDone
			if copied[k] {
				t.srv.counters.stored.add(items[k].Size)
			}
		case ctx.Err() != nil:
			t.status[from+k] = statusCancelled
		default:
			t.full = t.full || errors.Is(err, cascade.ErrNoRoom)
			t.srv.log.Debug("block is not stored", "namespace", t.ns, "key", t.keys[from+k], "err", err)
		}
	}
}

// copyIn fills a stage with block i of the region.
func (t *transfer) copyIn(ctx context.Context, i int, st *cascade.Stage) error {
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

// loadKeys loads keys from ≤ i < to, as storeKeys stores them.
func (t *transfer) loadKeys(ctx, within context.Context, from, to int) {
	views, err := t.srv.opt.Store.GetBatchUnverified(within, t.ns, t.keys[from:to])
	if err != nil {
		return // the store is closed: misses
	}
	t.spread(from, to)(len(views), func(k int) {
		if ctx.Err() != nil {
			t.status[from+k] = statusCancelled
		}
		if views[k] == nil {
			return
		}
		if ctx.Err() == nil {
			t.status[from+k] = t.load(ctx, within, from+k, views[k])
		}
		views[k].Release()
	})
}

// load copies the block of a view to where block i is wanted. If it turns out
// to be damaged, the copy below has a try.
func (t *transfer) load(ctx, within context.Context, i int, v *cascade.View) byte {
	status, good := t.copyOut(ctx, i, v)
	if !good {
		below, err := t.srv.opt.Store.GetUnverified(within, t.ns, t.keys[i])
		if err != nil {
			return statusNot
		}
		defer below.Release()
		if status, good = t.copyOut(ctx, i, below); !good {
			return statusNot
		}
	}
	if status == statusDone {
		t.srv.counters.loaded.add(t.layout.Size(i))
	}
	return status
}

// copyOut copies a view's bytes to block i of the region; good is false when
// they fail their checksum.
func (t *transfer) copyOut(ctx context.Context, i int, v *cascade.View) (status byte, good bool) {
	if v.Size() != t.layout.Size(i) {
		return statusNot, true
	}
	to := t.region.Cursor(t.layout.Block(i))
	crc := uint32(0)
	for step := range slices.Chunk(v.Bytes(), moveStep) {
		if ctx.Err() != nil {
			return statusCancelled, true
		}
		var err error
		if crc, err = to.Write(crc, step); err != nil {
			t.srv.log.Debug("block is not loaded", "namespace", t.ns, "key", t.keys[i], "err", err)
			return statusNot, true
		}
	}
	if !v.Verify(crc) {
		return statusNot, false
	}
	return statusDone, true
}
