package index

import (
	"context"
	"fmt"
	"iter"
)

// loadBatch is how many entries Load puts in one step. Such a batch is larger
// than a write buffer, so that Pebble sorts it once and writes it as it is.
const loadBatch = 1 << 18

// loadExpect is for how many entries a filter is made before their number is
// known: 8 MiB of memory while Load runs.
const loadExpect = 4 << 20

// loadSteps is how many of them go without compactions: fewer runs than those at
// which Pebble stops writes.
const loadSteps = 8

// readAhead runs a source on a goroutine of its own, a few batches ahead.
func readAhead(source iter.Seq2[Batch, error]) (ahead iter.Seq2[Batch, error], stop func()) {
	type item struct {
		batch Batch
		err   error
	}
	items, quit, ended := make(chan item, 64), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(items)
		for b, err := range source {
			select {
			case items <- item{b, err}:
			case <-quit:
				return
			}
		}
	}()
	ahead = func(yield func(Batch, error) bool) {
		for it := range items {
			if !yield(it.batch, it.err) {
				return
			}
		}
	}
	return ahead, func() { close(quit); <-ended }
}

// Load puts many batches: what recovery finds in footers behind the marks. Of
// one segment they must come in the order of their marks; segments in any
// order. The source runs on a goroutine of its own, and has ended when Load
// returns. Its first error ends Load and is returned; what came before is put.
// Other errors: ErrBadItem, ErrBroken, ErrClosed, the context's.
func (x *Index) Load(ctx context.Context, source iter.Seq2[Batch, error]) error {
	e, err := x.lock(ctx)
	if err != nil {
		return err
	}
	if e.segments.next == 1 {
		e.sieve = newSieve(loadExpect)
		e.compactions.shut()
	}
	e.unlock()
	defer x.endLoad()
	steps := 0
	ahead, stop := readAhead(source)
	defer stop()
	var some []Batch
	var last Batch
	n := 0
	for b, err := range ahead {
		if err != nil {
			return err
		}
		some, last = append(some, b), Batch{Segment: b.Segment, Mark: b.Mark}
		if n += len(b.Blocks) + len(b.Names); n >= loadBatch {
			if err := x.putAll(ctx, some); err != nil {
				return err
			}
			some, n = nil, 0
			if steps++; steps == loadSteps {
				x.openGate()
			}
		}
	}
	if err := x.putAll(ctx, some); err != nil {
		return err
	}
	if err := x.Sync(ctx); err != nil || steps == 0 {
		return err
	}
	// Pebble keeps a large batch in memory until there is another to write.
	if err := x.putAll(ctx, []Batch{last}); err != nil {
		return err
	}
	return x.Sync(ctx)
}

// endLoad gives the filter's memory back and lets compactions begin.
func (x *Index) endLoad() {
	if e, err := x.lockSoon(); err == nil {
		e.sieve = nil
		e.unlock()
	}
	x.openGate()
}

// openGate lets compactions of the engine in use begin. That may need Pebble's
// locks.
func (x *Index) openGate() {
	e := x.engine.Load()
	// One that breaks meanwhile needs no compactions.
	_ = e.call(context.Background(), e.openGate)
}

// lockSoon is lock for what must not wait long.
func (x *Index) lockSoon() (*engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), x.opt.CloseWait)
	defer cancel()
	return x.lock(ctx)
}

// Rebuild throws away what the index holds, and what broke it, and loads the
// source. While it runs, reads find what is loaded so far. Errors: those of
// Load; ErrBroken when it broke too often in this process, or has no disk to
// start again on.
func (x *Index) Rebuild(ctx context.Context, source iter.Seq2[Batch, error]) error {
	if err := x.renew(ctx); err != nil {
		return err
	}
	return x.Load(ctx, source)
}

// renew puts an empty database in the place of the one in use. A broken one is
// left behind as it is; its files are removed.
func (x *Index) renew(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed.Load() {
		return ErrClosed
	}
	old := x.engine.Load()
	if err := old.lock(ctx); err != nil && old.err() == nil {
		return err
	}
	if old.err() != nil {
		if x.abandoned == maxAbandoned {
			return fmt.Errorf("%w; it broke %d times and is left so until the process is restarted", old.err(), maxAbandoned+1)
		}
		x.abandoned++
	} else {
		defer old.unlock()
	}
	err := x.home.renew()
	var e *engine
	if err == nil {
		e, err = x.start()
	}
	if err != nil {
		return old.fail(fmt.Errorf("starting again: %w", err))
	}
	x.engine.Store(e)
	if old.err() == nil {
		_ = old.close(false) // nothing in it is wanted
	}
	x.home.tidy()
	return nil
}

// Retune reopens the database with another size ratio T and number of runs K,
// put within bounds; what is there takes that shape as it is rewritten anyway.
// Reads go on, from a frozen copy (hard links) of the tables; writes wait, for
// about as long as it takes to write the buffers and to open a database twice.
// It is meant for a quiet moment. Errors: ErrBroken, ErrClosed, the context's
// while it waits for its turn.
func (x *Index) Retune(ctx context.Context, sizeRatio, runs int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	main, err := x.lock(ctx)
	if err != nil {
		return err
	}
	o := *main.opt
	o.SizeRatio, o.Runs = tuning(sizeRatio, runs)
	if o.SizeRatio == main.opt.SizeRatio && o.Runs == main.opt.Runs {
		main.unlock()
		return nil
	}
	view, err := x.freezeView(main)
	if err != nil {
		main.unlock()
		return err
	}
	x.engine.Store(view)
	next, err := x.reopen(main, &o)
	if err != nil {
		return view.fail(err)
	}
	x.engine.Store(next)
	x.count.retunes.Add(1)
	next.unlock()
	if err := view.close(false); err == nil {
		_ = x.opt.fs.RemoveAll(x.home.view()) // tried again by the next Open
	}
	return nil
}

// share gives an engine the table of segments and the turns of another.
func (e *engine) share(with *engine) {
	e.segments, e.writing, e.sieve = with.segments, with.writing, with.sieve
}

// freezeView opens a copy of the database for reading.
func (x *Index) freezeView(main *engine) (*engine, error) {
	dir := x.home.view()
	err := main.within("writing the buffers and a copy", func() error {
		if err := x.opt.fs.RemoveAll(dir); err != nil {
			return err
		}
		if err := main.db.Flush(); err != nil {
			return err
		}
		return main.db.Checkpoint(dir)
	})
	if err != nil {
		return nil, err
	}
	view, err := openEngine(dir, main.opt, x.cache, true)
	if err != nil {
		return nil, fmt.Errorf("index: opening a copy: %w", err)
	}
	view.share(main)
	return view, nil
}

// reopen closes the database and opens it with other options.
func (x *Index) reopen(main *engine, o *Options) (*engine, error) {
	if err := main.close(true); err != nil {
		return nil, err
	}
	next, err := openEngine(x.home.base(), o, x.cache, false)
	if err != nil {
		return nil, err
	}
	next.share(main)
	return next, nil
}
