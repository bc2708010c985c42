package index

import (
	"context"
	"fmt"
	"iter"
)

// loadBatch is how many entries Load puts in one step, by default.
// Such a batch is larger than a write buffer, so that Pebble sorts it once and
// writes it as it is.
const loadBatch = 1 << 18

// loadExpect is for how many entries a filter is made before their number is
// known: 8 MiB of memory while Load runs.
const loadExpect = 4 << 20

// loadSteps is how many of them go without compactions: fewer runs than those at
// which Pebble stops writes.
const loadSteps = 8

// step is what Load puts at once.
type step struct {
	batches []Batch
	entries int
	err     error // of the source, which ended with it
}

// stepsOf runs a source on a goroutine of its own, which gathers a step of so
// many entries while the one before is put. It has ended when stop returns.
func stepsOf(source iter.Seq2[Batch, error], entries int) (steps <-chan step, stop func()) {
	ready, quit := make(chan step), make(chan struct{})
	go func() {
		defer close(ready)
		var s step
		hand := func() bool {
			select {
			case ready <- s:
				s = step{}
				return true
			case <-quit:
				return false
			}
		}
		for b, err := range source {
			if err != nil {
				s.err = err
				break
			}
			s.batches = append(s.batches, b)
			if s.entries += len(b.Blocks) + len(b.Names); s.entries >= entries && !hand() {
				return
			}
		}
		hand()
	}()
	return ready, func() {
		close(quit)
		for range ready {
		}
	}
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
		e.compactions.Shut()
	}
	e.unlock()
	defer func() { // the filter's memory goes back, and compactions begin
		ctx, cancel := context.WithTimeout(context.Background(), x.opt.CloseWait)
		defer cancel()
		if e, err := x.lock(ctx); err == nil {
			e.sieve = nil
			e.unlock()
		}
		x.openGate()
	}()
	steps, stop := stepsOf(source, x.opt.loadBatch)
	defer stop()
	var last Batch
	full := 0
	p := new(planner)
	for s := range steps {
		if err := x.putAll(ctx, p, s.batches); err != nil {
			return err
		}
		if s.err != nil {
			return s.err
		}
		if n := len(s.batches); n > 0 {
			last = Batch{Segment: s.batches[n-1].Segment, Mark: s.batches[n-1].Mark}
		}
		if s.entries < x.opt.loadBatch {
			continue
		}
		if full++; full == loadSteps {
			x.openGate()
		}
	}
	if err := x.Sync(ctx); err != nil || full == 0 {
		return err
	}
	// Pebble keeps a large batch in memory until there is another to write.
	if err := x.putAll(ctx, p, []Batch{last}); err != nil {
		return err
	}
	return x.Sync(ctx)
}

// openGate lets compactions of the engine in use begin. That may need Pebble's
// locks.
func (x *Index) openGate() {
	e := x.engine.Load()
	// One that breaks meanwhile needs no compactions.
	_ = e.call(context.Background(), e.openGate)
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
