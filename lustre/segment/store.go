package segment

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/lustre/segment/pool"
	"cascadekv/lustre/segment/space"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// Store is one rank's segments and the index over everyone's. All methods are
// safe for concurrent use.
type Store struct {
	opt           Options
	fs            vfs.FS
	access        *access
	reads, writes pool.Pool
	watch         *breaker.FS // fs again
	handles       *handles    // of files read by place
	coder         *codec.Coder
	merging       pool.Lock    // one merge at a time
	putting       atomic.Int64 // callers who wait for a write: merges give way to them
	advice        advice
	guard         *trust.Guard
	faults        faults
	uses          atomic.Uint64 // of handles

	room    *space.Room
	lease   *lease.Lease
	arrived chan struct{} // capacity 1: something late has ended

	mu         sync.Mutex
	idle       *sync.Cond // pins or jobs went down
	blocks     map[block.ID]*location
	arriving   map[block.ID]struct{}
	names      map[nameKey]*nameState
	files      map[*file]struct{}
	current    *file // takes frames; nil: the next one makes a file
	nextFile   uint64
	waiting    []format.Record
	loads      map[*load]struct{} // names on their way to the file system
	pins       int
	jobs       int
	payload    int64
	stored     int64
	flushing   bool
	reclaiming bool
	closed     bool
	skipped    []error
	mounted    int64               // type of the file system, once it is known
	opened     map[*file]struct{}  // those with a handle
	late       map[string]struct{} // paths of what did not answer in time
	judged     bool                // Hides has said what withdrawn names hide
	merged     tiers.Merged
}

// location is where an indexed block lies. Guarded by Store.mu but for what
// never changes.
type location struct {
	file *file
	info block.Info
	as   format.Payload
	off  int64 // of the payload in the file
	pins int
}

// Open makes a store over Options.Dir. It reads nothing yet: call Recover
// first, or start empty. Errors match ErrUnavailable.
func Open(o Options) (*Store, error) {
	o.setDefaults()
	if o.Dir == "" {
		return nil, fmt.Errorf("%w: no directory given", ErrBadItem)
	}
	if o.coder == nil {
		var err error
		if o.coder, err = codec.New(codec.Options{}); err != nil {
			return nil, err
		}
	}
	access, err := openAccess(&o)
	if err != nil {
		return nil, err
	}
	watch := breaker.New(o.FS, o.Now, o.Readers, o.Writers)
	o.FS = watch
	s := &Store{
		opt: o, fs: watch, watch: watch, access: access, guard: access.guard, coder: o.coder,
		reads: make(pool.Pool, o.Readers), writes: make(pool.Pool, o.Writers), merging: pool.NewLock(),
		blocks: map[block.ID]*location{}, arriving: map[block.ID]struct{}{},
		names: map[nameKey]*nameState{}, files: map[*file]struct{}{}, loads: map[*load]struct{}{},
		opened: map[*file]struct{}{}, late: map[string]struct{}{}, arrived: make(chan struct{}, 1),
		room: space.New(space.Options{FS: watch, Dir: o.Dir, Segment: o.SegmentBytes, RetryFull: o.RetryFull, Now: o.Now}),
	}
	s.idle = sync.NewCond(&s.mu)
	s.lease = lease.New(s.leaseOptions())
	s.handles = newHandles(o, s.closeSoon)
	watch.Spare = s.spareFile
	return s, nil
}

func (s *Store) leaseOptions() lease.Options {
	o := lease.Options{
		FS: s.fs, Dir: s.opt.Dir, Rank: s.opt.Rank, Incarnation: s.opt.Incarnation, Process: s.opt.Process, Now: s.opt.Now,
		Begin: func() (func(), bool) {
			if s.admit(nil) != nil {
				return nil, false
			}
			s.writes <- struct{}{}
			slot := s.writes.Taken()
			return func() { slot.End(); s.endJob() }, true
		},
		Lost: s.disown,
	}
	if s.opt.Layout != nil {
		o.Prepare = s.opt.Layout.Prepare
	}
	return o
}

// disown ends this run's ownership of all files. What it writes from now on goes to
// a new directory.
func (s *Store) disown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.files {
		f.own = false
	}
	if s.current != nil {
		s.current.done = true
		s.current = nil
	}
}

// Name implements tiers.Tier.
func (s *Store) Name() string { return "lustre" }

// Usage implements tiers.Tier. The file system, or a quota, is the limit.
func (s *Store) Usage() tiers.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := tiers.Usage{Payload: s.payload, Blocks: len(s.blocks)}
	for f := range s.files {
		u.Used += f.size
		if !f.own {
			u.Foreign += f.size
		}
	}
	return u
}

// OthersUsage implements tiers.Files.
func (s *Store) OthersUsage() (bytes int64, runs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := map[tiers.Part]bool{}
	for f := range s.files {
		if !f.own {
			bytes += f.size
			others[f.id.Part()] = true
		}
	}
	return bytes, len(others)
}

// Health tells how the store does. It counts from Open on.
func (s *Store) Health() tiers.Health {
	h := s.watch.Health()
	h.ReadOnly, h.Poisoned, h.Reads = s.ReadOnly(), s.faults.poisoned.Load(), s.faults.reads()
	return h
}

// ReadOnly reports whether writes are refused because the file system is full, or
// nearly so.
func (s *Store) ReadOnly() bool {
	short, _ := s.room.Short()
	return short
}

// Refused returns what was not read because of whose it is.
func (s *Store) Refused() trust.Refused { return s.guard.Refused() }

// Skipped returns one error for each file or directory that Recover left out,
// whole or in part.
func (s *Store) Skipped() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.skipped...)
}

// endJob ends an operation that Close waits for.
func (s *Store) endJob() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs--
	s.idle.Broadcast()
}

// Evict forgets a block. A segment of this rank with nothing left in it is
// unlinked in the background. Errors: ErrNotFound, ErrPinned.
func (s *Store) Evict(id block.ID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return err
	}
	if loc.pins > 0 {
		return fmt.Errorf("%w: %v", tiers.ErrPinned, id)
	}
	s.forgetLocked(loc)
	return nil
}

func (s *Store) findLocked(id block.ID) (*location, error) {
	if s.closed {
		return nil, tiers.ErrClosed
	}
	loc := s.blocks[id]
	if loc == nil {
		return nil, fmt.Errorf("%w: %v", tiers.ErrNotFound, id)
	}
	return loc, nil
}

// indexLocked adds a block, and tells whether it did: the first copy stays.
func (s *Store) indexLocked(f *file, info block.Info, as format.Payload, off int64) bool {
	if s.blocks[info.ID] != nil {
		return false
	}
	s.blocks[info.ID] = &location{file: f, info: info, as: as, off: off}
	s.payload += info.Size
	s.stored += as.Size
	f.live++
	f.liveBytes += as.Footprint()
	return true
}

// newFileLocked makes a segment that has no file yet.
func (s *Store) newFileLocked() *file {
	f := newFile(true)
	f.poisonings = &s.faults.poisoned
	f.id = format.FileID{Rank: s.opt.Rank, Number: s.nextFile}
	s.nextFile++
	s.files[f] = struct{}{}
	return f
}

// forgetLocked takes a block out of the index, if it is still the one there.
func (s *Store) forgetLocked(loc *location) {
	if s.blocks[loc.info.ID] != loc {
		return
	}
	delete(s.blocks, loc.info.ID)
	s.payload -= loc.info.Size
	s.stored -= loc.as.Size
	loc.file.liveBytes -= loc.as.Footprint()
	if loc.file.live--; loc.file.live == 0 {
		s.reclaimSoonLocked()
	}
}

// Close waits for references and running operations, writes what is buffered,
// seals the current segment and closes the files. What it cannot finish in
// twice Options.CloseWait is left as after a crash, and the error matches
// ErrUnavailable. Calls after the first do nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.lease.Stop()
	s.waitIdleLocked()
	s.jobs++ // the final write, which ends it
	s.mu.Unlock()
	err := s.finish()
	for _, f := range s.unused() {
		err = errors.Join(err, f.close())
	}
	for _, h := range s.handles.stop() {
		h.Close() // only read: its error tells nothing
	}
	if err == nil {
		err = s.endTenure()
	}
	s.access.close()
	if err != nil && !errors.Is(err, tiers.ErrUnavailable) {
		err = unavailable("close", err)
	}
	return err
}

// unused returns the files that nobody can be reading or writing any more.
func (s *Store) unused() []*file {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*file
	for f := range s.files {
		if f.users == 0 && !f.removing {
			out = append(out, f)
		}
	}
	return out
}

// waitIdleLocked waits for references and operations, up to CloseWait.
func (s *Store) waitIdleLocked() {
	expired := false
	timer := time.AfterFunc(s.opt.CloseWait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		expired = true
		s.idle.Broadcast()
	})
	defer timer.Stop()
	for s.pins+s.jobs > 0 && !expired {
		s.idle.Wait()
	}
}
