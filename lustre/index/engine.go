package index

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	"cascadekv/internal/cpus"
	"cascadekv/lustre/index/gate"
)

// engine is one open Pebble database with its pool of readers. When Pebble
// would end the process it is broken instead, for good, and its database is
// never touched again.
type engine struct {
	db       *pebble.DB
	opt      *Options
	segments *segmentTable
	writing  chan struct{} // holds one while someone changes the index
	sieve    *sieve        // of what is there, while Load fills an empty index; as writing

	compactions *gate.Gate

	breaking sync.Once
	broken   chan struct{} // closed when cause is set
	cause    error

	mu      sync.Mutex
	quiet   *sync.Cond // used went down
	version uint64     // changes with each commit, flush and compaction
	idle    []*reader  // all of this version
	used    int
	closing bool
	stale   []*reader // to be closed by sweep
	sweeps  bool      // sweep is running
}

// maxIdle bounds the readers kept open between calls.
var maxIdle = 2*cpus.Count() + 2

// openEngine opens, or makes, the database in dir. It may leave a goroutine
// behind when Pebble fails in a way that would end the process.
func openEngine(dir string, o *Options, cache *pebble.Cache, readOnly bool) (*engine, error) {
	e := &engine{opt: o, segments: newSegmentTable(), writing: make(chan struct{}, 1), broken: make(chan struct{})}
	e.compactions = gate.New()
	e.quiet = sync.NewCond(&e.mu)
	var db *pebble.DB
	var err error
	left := e.call(context.Background(), func() {
		po := e.options(cache, readOnly)
		po.Experimental.CompactionScheduler = e.compactions
		if db, err = pebble.Open(dir, po); err == nil {
			e.compactions.Open()
		}
	})
	if left != nil {
		return nil, left
	}
	e.db = db
	return e, err
}

// options are Pebble's. Values are hashes and do not compress. Tables are kept
// small because the filter of each is one block of the cache.
func (e *engine) options(cache *pebble.Cache, readOnly bool) *pebble.Options {
	o := &pebble.Options{
		Cache: cache, Comparer: comparer, DisableWAL: true, FS: e.opt.fs, ReadOnly: readOnly,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       uint64(e.opt.MemTableBytes), MemTableStopWritesThreshold: 3,
		// Pebble counts each run of its top level twice.
		L0CompactionThreshold: 2 * e.opt.Runs, L0StopWritesThreshold: max(12, 6*e.opt.Runs),
		Logger: engineLog{e},
		EventListener: &pebble.EventListener{
			BackgroundError: e.freeze,
			DataCorruption:  func(i pebble.DataCorruptionInfo) { e.fail(i.Details) },
			// An old reader keeps tables that were merged away, and reads them.
			FlushEnd:      func(pebble.FlushInfo) { e.changed() },
			CompactionEnd: func(pebble.CompactionInfo) { e.changed() },
			// It has Pebble's lock, which opening the gate may need.
			WriteStallBegin: func(pebble.WriteStallBeginInfo) { go e.openGate() },
		},
	}
	o.Experimental.LevelMultiplier = e.opt.SizeRatio
	o.Experimental.ReadSamplingMultiplier = -1 // it makes readers take Pebble's main lock
	// Pebble takes keys of one prefix for versions of one thing, and would put the
	// values of all but the first of a run elsewhere.
	o.Experimental.SpanPolicyFunc = func([]byte) (pebble.SpanPolicy, []byte, error) {
		return pebble.SpanPolicy{DisableValueSeparationBySuffix: true}, nil, nil
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		o.Levels[i].BlockSize = pageBytes
		o.TargetFileSizes[i] = tableBytes
	}
	return o
}

const (
	tableBytes = 16 << 20

	// pageBytes holds some 150 names: a chain meets few pages, and reading one
	// for a single name still costs less than finding its table.
	pageBytes = 16 << 10
)

// fail breaks the engine; the first cause stays.
func (e *engine) fail(cause error) error {
	e.breaking.Do(func() {
		e.cause = &brokenError{cause}
		close(e.broken)
	})
	return e.err()
}

// freeze breaks the engine and stops the goroutine, with every lock it holds,
// so that Pebble does not go on or try the same again for ever.
func (e *engine) freeze(cause error) {
	e.fail(cause)
	select {}
}

// openGate lets compactions begin when writes wait for them.
func (e *engine) openGate() {
	defer e.rescue()
	if r, ok := e.take(); ok {
		e.compactions.Open()
		e.give(r)
	}
}

// err is why the engine is broken, nil while it is not.
func (e *engine) err() error {
	select {
	case <-e.broken:
		return e.cause
	default:
		return nil
	}
}

// call runs fn, which may meet locks of Pebble's, on a goroutine of its own and
// leaves it behind when the engine breaks or ctx ends. Only after nil has fn
// run to its end.
func (e *engine) call(ctx context.Context, fn func()) error {
	if err := e.err(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer e.rescue()
		fn()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-e.broken:
		return e.cause
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rescue turns a panic of Pebble's on a goroutine of ours into a break.
func (e *engine) rescue() {
	if r := recover(); r != nil {
		e.fail(fmt.Errorf("panic: %v", r))
	}
}

// lock waits for a turn to change the index; unlock ends it.
func (e *engine) lock(ctx context.Context) error {
	select {
	case e.writing <- struct{}{}:
		return e.err()
	case <-e.broken:
		return e.cause
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *engine) unlock() { <-e.writing }

// commit makes a batch visible to readers that are taken afterwards, and ends
// the turn of its caller when it is.
func (e *engine) commit(ctx context.Context, b *pebble.Batch) error {
	var err error
	left := e.call(ctx, func() {
		if err = b.Commit(pebble.NoSync); err == nil {
			e.changed()
		}
		e.unlock()
	})
	if left != nil {
		return left
	}
	if err != nil {
		return e.fail(err)
	}
	return nil
}

// changed makes idle readers stale. It may be called with locks of Pebble's.
func (e *engine) changed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.version++
	e.stale = append(e.stale, e.idle...)
	clear(e.idle)
	e.idle = e.idle[:0]
	e.sweepLocked()
}

// take returns a reader that sees all commits; false when the engine is being
// closed and another one takes its place.
func (e *engine) take() (*reader, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, false
	}
	e.used++
	if n := len(e.idle); n > 0 {
		r := e.idle[n-1]
		e.idle = e.idle[:n-1]
		return r, true
	}
	return &reader{engine: e, version: e.version}, true
}

// give takes a reader back. Closing one may need Pebble's lock, which callers
// must not wait for.
func (e *engine) give(r *reader) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used--
	if r.version == e.version && len(e.idle) < maxIdle && !e.closing {
		e.idle = append(e.idle, r)
	} else {
		e.stale = append(e.stale, r)
		e.sweepLocked()
	}
	e.quiet.Broadcast()
}

// sweepLocked closes stale readers in the background.
func (e *engine) sweepLocked() {
	if e.sweeps || len(e.stale) == 0 {
		return
	}
	e.sweeps = true
	go e.sweep()
}

func (e *engine) sweep() {
	defer e.rescue()
	e.mu.Lock()
	for len(e.stale) > 0 {
		old := e.stale
		e.stale = nil
		e.mu.Unlock()
		for _, r := range old {
			if e.err() == nil {
				r.close()
			}
		}
		e.mu.Lock()
	}
	e.sweeps = false
	e.quiet.Broadcast()
	e.mu.Unlock()
}

// close waits for readers, writes what is in memory when flush is set, and
// closes the database. A broken one is left as it is.
func (e *engine) close(flush bool) error {
	e.mu.Lock()
	e.closing = true
	e.stale = append(e.stale, e.idle...)
	e.idle = nil
	e.sweepLocked()
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), e.opt.CloseWait)
	defer cancel()
	var err error
	left := e.call(ctx, func() {
		e.mu.Lock()
		for e.used > 0 || e.sweeps {
			e.quiet.Wait()
		}
		e.mu.Unlock()
		if flush {
			err = e.db.Flush()
		}
		if err == nil {
			err = e.db.Close()
		}
	})
	if left == context.DeadlineExceeded {
		left = e.fail(fmt.Errorf("it did not close within %v", e.opt.CloseWait))
	}
	if left != nil {
		return left
	}
	if err != nil {
		return e.fail(fmt.Errorf("close: %w", err))
	}
	return nil
}

// within is call with Options.CloseWait as its limit.
func (e *engine) within(what string, fn func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), e.opt.CloseWait)
	defer cancel()
	var err error
	if left := e.call(ctx, func() { err = fn() }); left != nil {
		if err := e.err(); err != nil {
			return err
		}
		return e.fail(fmt.Errorf("%s took longer than %v", what, e.opt.CloseWait))
	}
	return err
}

// engineLog receives what Pebble has to say: only the last words count.
type engineLog struct{ e *engine }

func (engineLog) Infof(string, ...any)  {}
func (engineLog) Errorf(string, ...any) {}

// Fatalf does not return: what would follow relies on it.
func (l engineLog) Fatalf(format string, args ...any) { l.e.freeze(fmt.Errorf(format, args...)) }

// pause sleeps as long as the work took since began, so that background work
// uses half of one CPU at most.
func pause(began time.Time, stop <-chan struct{}) {
	t := time.NewTimer(time.Since(began))
	defer t.Stop()
	select {
	case <-t.C:
	case <-stop:
	}
}
