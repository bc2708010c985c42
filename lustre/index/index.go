package index

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// maxAbandoned is how many broken databases an Index leaves in memory, up to
// four write buffers each, before it stays broken.
const maxAbandoned = 3

// Index finds where blocks lie. All methods are safe for concurrent use.
type Index struct {
	opt     Options
	cache   *pebble.Cache
	engine  atomic.Pointer[engine]
	count   counters
	emptied error // why Open found nothing to keep

	mu        sync.Mutex // held by what replaces the engine: Rebuild, Retune, Close
	home      *home
	abandoned int
	closed    atomic.Bool

	cleaning atomic.Bool
	stop     chan struct{} // closed by Close
	cleaned  sync.WaitGroup
}

// Open opens the index in Options.Dir, or makes an empty one there: when there
// is none, and when the one there is of another format or campaign or does not
// open. Emptied reports which. Errors: ErrSharedFS, ErrUnavailable.
func Open(o Options) (*Index, error) {
	o.setDefaults()
	if o.Dir == "" {
		return nil, badItem("no directory given")
	}
	if err := checkLocal(o.Dir, o.fsType); err != nil {
		return nil, err
	}
	err := o.fs.MkdirAll(o.Dir, 0o700)
	var held io.Closer // keeps other processes out
	if err == nil {
		held, err = o.fs.Lock(o.fs.PathJoin(o.Dir, lockName))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: another process has it, or its file system has no locks: %w", ErrUnavailable, o.Dir, err)
	}
	h, kept, err := openHome(o.fs, o.Dir, o.Campaign)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, o.Dir, errors.Join(err, held.Close()))
	}
	h.held = held
	x := &Index{opt: o, home: h, emptied: kept, cache: pebble.NewCache(o.CacheBytes), stop: make(chan struct{})}
	e, err := x.start()
	if err != nil && kept == nil {
		x.emptied = err
		if err = h.renew(); err == nil {
			e, err = x.start()
			h.tidy()
		}
	}
	if err != nil {
		x.cache.Unref()
		return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, o.Dir, errors.Join(err, held.Close()))
	}
	if x.emptied != nil {
		x.emptied = fmt.Errorf("index: %s has nothing to keep: %w", o.Dir, x.emptied)
	}
	x.engine.Store(e)
	return x, nil
}

// start opens the database in use and reads its table of segments.
func (x *Index) start() (*engine, error) {
	e, err := openEngine(x.home.base(), &x.opt, x.cache, false)
	if err != nil {
		return nil, err
	}
	if err := e.within("reading the table of segments", e.loadSegments); err != nil {
		return nil, errors.Join(err, e.close(false))
	}
	return e, nil
}

// maxSegments bounds numbers of segments: a table of more is not one of ours.
const maxSegments = 1 << 26

// loadSegments reads the rows of all segments.
func (e *engine) loadSegments() error {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{kindSegment}, UpperBound: []byte{kindSegment + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var number uint32
		var row segmentRow
		if number, err = decodeSegmentKey(it.Key()); err != nil {
			break
		}
		if number >= maxSegments {
			err = badFormat("segment number %d", number)
			break
		}
		if row, err = decodeSegmentRow(it.Value()); err == nil {
			e.segments.set(number, row)
		}
	}
	return errors.Join(err, it.Close())
}

// Emptied returns why Open began with an empty index; nil when it kept what was
// there.
func (x *Index) Emptied() error { return x.emptied }

// Err is why the index is broken, nil while it is not. It matches ErrBroken.
func (x *Index) Err() error { return x.engine.Load().err() }

// lock waits until nobody else changes the index. The engine it returns is the
// one in use, until unlock.
func (x *Index) lock(ctx context.Context) (*engine, error) {
	for {
		if x.closed.Load() {
			return nil, ErrClosed
		}
		e := x.engine.Load()
		if err := e.lock(ctx); err != nil {
			return nil, err
		}
		if x.engine.Load() == e {
			return e, nil
		}
		e.unlock()
	}
}

// read calls fn with a reader. What fn reports of the database breaks the
// index.
func (x *Index) read(fn func(r *reader) error) (err error) {
	for {
		e := x.engine.Load()
		if err := e.err(); err != nil {
			return err
		}
		r, ok := e.take()
		if !ok {
			if x.closed.Load() {
				return ErrClosed
			}
			continue // it has just been replaced
		}
		return e.guard(r, fn)
	}
}

// guard runs fn and takes the reader back. A panic of Pebble's breaks the
// engine, and its reader is not used again.
func (e *engine) guard(r *reader, fn func(r *reader) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = e.fail(fmt.Errorf("panic: %v", p))
		}
	}()
	err = fn(r)
	r.on = false
	if err != nil {
		err = e.fail(err)
	}
	e.give(r)
	return err
}

// PutBatch adds entries that are durable in their segment. Either all of them
// count afterwards or none. It replaces the places of blocks unless the index
// has one in a segment that supersedes this one, and the records of names unless it has one
// with a higher Seq. After ctx ended the batch may still be put. Errors:
// ErrBadItem, ErrBroken, ErrClosed, the context's.
func (x *Index) PutBatch(ctx context.Context, b Batch) error {
	return x.putAll(ctx, new(planner), []Batch{b})
}

// Forget takes blocks out of the index that it still has at these places, of which
// Segment and Offset count: one that was merged away meanwhile stays. Names of
// what is gone stay, and lead nowhere. Errors: ErrBroken, ErrClosed, the
// context's.
func (x *Index) Forget(ctx context.Context, at ...Block) error {
	return x.change(ctx, newPlanner(len(at), 0, 0), func(p *planner) error {
		for i := range at {
			b, err := p.block(at[i].Info.ID)
			if err != nil {
				return err
			}
			if b.exists && p.lies(b, &at[i].Place) {
				b.exists = false
				p.touch(b)
			}
		}
		return nil
	})
}

// Segments lists the segments that are alive, in no particular order. Errors:
// ErrBroken, ErrClosed.
func (x *Index) Segments() ([]SegmentState, error) {
	e, err := x.lock(context.Background())
	if err != nil {
		return nil, err
	}
	defer e.unlock()
	out, now := make([]SegmentState, 0, len(e.segments.number)), uint64(max(0, x.opt.Now().Unix()))
	for s, n := range e.segments.number {
		row := e.segments.row(n)
		out = append(out, SegmentState{
			Segment: s, Mark: row.mark, Entries: row.entries, Blocks: row.blocks, Names: row.names, Bytes: row.bytes, Stale: row.stale,
			Ended: row.ends < now,
		})
	}
	return out, nil
}

// Sync makes all that was put durable. Errors: ErrBroken, ErrClosed, the
// context's.
func (x *Index) Sync(ctx context.Context) error {
	e, err := x.lock(ctx)
	if err != nil {
		return err
	}
	var flushed error
	left := e.call(ctx, func() {
		flushed = e.db.Flush()
		e.unlock()
	})
	if left == nil && flushed != nil {
		left = e.fail(flushed)
	}
	return left
}

// Close makes all that was put durable and closes the index. A broken one it
// leaves. Calls after the first do nothing. Errors: ErrBroken.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed.Swap(true) {
		return nil
	}
	close(x.stop)
	x.cleaned.Wait()
	defer x.cache.Unref()
	defer x.home.held.Close() // nothing can be done about a lock that stays
	e := x.engine.Load()
	ctx, cancel := context.WithTimeout(context.Background(), x.opt.CloseWait)
	defer cancel()
	if err := e.lock(ctx); err != nil {
		if err := e.err(); err != nil {
			return err
		}
		return e.fail(fmt.Errorf("a write took longer than %v", x.opt.CloseWait))
	}
	defer e.unlock()
	return e.close(true)
}
