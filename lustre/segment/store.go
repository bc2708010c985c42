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
	"cascadekv/lustre/segment/handles"
	"cascadekv/lustre/segment/lease"
	"cascadekv/lustre/segment/pool"
	"cascadekv/lustre/segment/space"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// Store is one rank's segments and the index over everyone's: a tiers.Files without a
// catalogue. All methods are safe for concurrent use. Locks are taken in this order:
// file.appending, file.handleMu, index.mu (which guards what stands below index here
// too; handleMu is only tried under it), and then that of one part alone: file.syncMu,
// or those inside room, lease, handles, watch, advice and layouts. No file operation runs under
// index.mu.
type Store struct {
	opt           Options
	fs            vfs.FS
	access        *access
	reads, writes pool.Pool
	watch         *breaker.FS    // fs again
	handles       *handles.Cache // of files read by place
	coder         *codec.Coder
	merging       pool.Lock    // one merge at a time
	putting       atomic.Int64 // callers who wait for a write: merges give way to them
	advice        advice
	faults        faults

	room    *space.Room
	lease   *lease.Lease
	arrived chan struct{} // capacity 1: something late has ended

	*index
	idle     *sync.Cond // with index.mu: pins or jobs went down
	current  *file      // takes frames; nil: the next one makes a file
	nextFile uint64
	pendingNames
	pins, jobs int
	reclaiming bool
	merged     tiers.Merged
	layouts    format.Layouts
}

// Open makes a store over Options.Dir. It reads nothing yet: call Recover
// first, or start empty. Errors match ErrUnavailable.
func Open(o Options) (*Store, error) {
	setDefaults(&o)
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
		opt: o, fs: watch, watch: watch, access: access, coder: o.coder,
		reads: make(pool.Pool, o.Readers), writes: make(pool.Pool, o.Writers), merging: pool.NewLock(),
		pendingNames: pendingNames{loads: map[*load]struct{}{}}, advice: advice{to: o.Advice}, arrived: make(chan struct{}, 1),
		room: space.New(space.Options{FS: watch, Dir: o.Dir, Segment: o.SegmentBytes, RetryFull: o.RetryFull, Now: o.Now}),
	}
	s.index = newIndex(access.guard, o.Rank, o.Catalogued, s.reclaimSoonLocked)
	s.maxFiles, s.small = o.MaxFiles, o.SegmentBytes/2
	s.idle = sync.NewCond(&s.mu)
	s.lease = lease.New(leaseOptions(s))
	s.handles = handles.New(handles.Options{
		FS: o.FS, Dir: o.Dir, Most: o.OpenFiles, KeepOpen: o.KeepOpen, Tight: o.MaxOpenFiles > 0, Now: o.Now, Close: s.closeSoon,
	})
	watch.Spare = func() bool { return s.closeIdle() || s.handles.CloseOldest() }
	return s, nil
}

func leaseOptions(s *Store) lease.Options {
	o := lease.Options{
		FS: s.fs, Dir: s.opt.Dir, Rank: s.opt.Rank, Incarnation: s.opt.Incarnation, Process: s.opt.Process, Succeeds: s.opt.Succeeds, Now: s.opt.Now,
		Begin: func() (func(), bool) {
			if s.admit(nil) != nil {
				return nil, false
			}
			s.writes <- struct{}{}
			slot := s.writes.Taken()
			return func() { slot.End(); s.endJob() }, true
		},
		Lost: func() { // what this run writes from now on goes to a new directory
			s.mu.Lock()
			defer s.mu.Unlock()
			for f := range s.files {
				f.own = false
			}
			if s.current != nil {
				s.current.done = true
				s.current = nil
			}
		},
	}
	if s.opt.Layout != nil {
		o.Prepare = s.opt.Layout.Prepare
	}
	return o
}

// Name implements tiers.Tier.
func (s *Store) Name() string { return "lustre" }

// Usage implements tiers.Tier. The file system, or a quota, is the limit.
func (s *Store) Usage() tiers.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := tiers.Usage{Payload: s.payload, Blocks: len(s.blocks)}
	for f := range s.files {
		if f.spill.out {
			u.Payload += f.spill.has.Payload
			u.Blocks += f.spill.has.Blocks
		}
		u.Used += f.size
		if !f.own {
			u.OtherOwners += f.size
		}
	}
	return u
}

// OthersUsage implements tiers.Files.
func (x *index) OthersUsage() (bytes int64, runs int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	others := map[tiers.Part]bool{}
	for f := range x.files {
		if !f.own {
			bytes += f.size
			others[f.id.Part()] = true
		}
	}
	return bytes, len(others)
}

// Health is the state of the store. It counts from Open on.
func (s *Store) Health() tiers.Health {
	h := s.watch.Health()
	f := &s.faults
	h.ReadOnly, h.Poisoned = s.ReadOnly(), f.poisoned.Load()
	h.Reads = tiers.ReadErrors{Corrupt: f.corrupt.Load(), Gone: f.gone.Load(), Unanswered: f.unanswered.Load(), Failed: f.failed.Load()}
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
		return fmt.Errorf("lustre: %w: %v", tiers.ErrPinned, id)
	}
	s.forgetLocked(loc)
	return nil
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

// Close waits for references and running operations, writes what is buffered,
// seals the current segment and closes the files. What it cannot finish in
// twice Options.CloseWait is left as after a crash, and the error matches
// ErrUnavailable, with ErrFull where there was no room for it. Calls after the first do nothing.
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
	var unused []*file // nobody can be reading or writing these
	s.mu.Lock()
	for f := range s.files {
		if f.users == 0 && !f.removing {
			unused = append(unused, f)
		}
	}
	s.mu.Unlock()
	for _, f := range unused {
		err = errors.Join(err, f.close())
	}
	for _, h := range s.handles.Stop() {
		h.Close() // only read: its error means nothing
	}
	if err == nil {
		err = s.retire()
	}
	s.access.close()
	if err != nil && !errors.Is(err, tiers.ErrUnavailable) {
		err = unwritten("close", err)
	}
	return err
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
