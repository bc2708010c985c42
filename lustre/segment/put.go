package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/payload"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// Put stores all items or none. When it returns nil they are durable. It reads
// Data until it returns, unless the error is a *Busy. A ctx that ends during
// the write retires the segment, so it should allow for a slow file system:
// seconds, not milliseconds. Errors: ErrExists (also for a block twice in
// items), ErrTooLarge, ErrBadItem, ErrUnavailable, with ErrFull for want of room.
func (s *Store) Put(ctx context.Context, items ...tiers.Item) error {
	for _, it := range items {
		if err := checkItem(it); err != nil {
			return err
		}
	}
	if err := s.admit(items); err != nil {
		return err
	}
	if len(items) == 0 {
		s.endJob()
		return nil
	}
	return s.runWrite(ctx, items)
}

func checkItem(it tiers.Item) error {
	if it.Info.Size > block.MaxSize {
		return fmt.Errorf("lustre: %w: %v has %d bytes, at most %d", tiers.ErrTooLarge, it.Info.ID, it.Info.Size, int64(block.MaxSize))
	}
	if int64(len(it.Data)) != it.Info.Size || it.Info.ID.IsZero() || it.Info.ID.IsProvisional() {
		return fmt.Errorf("%w: id %v, size %d, %d bytes of data", ErrBadItem, it.Info.ID, it.Info.Size, len(it.Data))
	}
	for _, n := range it.Names {
		if err := checkName(n); err != nil {
			return err
		}
	}
	return nil
}

// admit counts a job and marks its blocks as arriving.
func (s *Store) admit(items []tiers.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return tiers.ErrClosed
	}
	for i, it := range items {
		_, arriving := s.arriving[it.Info.ID]
		if s.blocks[it.Info.ID] != nil || arriving {
			for _, before := range items[:i] {
				delete(s.arriving, before.Info.ID)
			}
			return fmt.Errorf("lustre: %w: %v", tiers.ErrExists, it.Info.ID)
		}
		s.arriving[it.Info.ID] = struct{}{}
	}
	s.jobs++
	return nil
}

// leave lets others put the blocks that were arriving.
func (s *Store) leave(items []tiers.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		delete(s.arriving, it.Info.ID)
	}
}

// writing is a job that writes a frame.
type writing struct {
	pool.Job
	s    *Store
	file atomic.Pointer[file] // where it writes, once known

	unindexed bool // the indexer did not take the frame
}

// runWrite writes admitted items and the waiting names, and ends the job.
func (s *Store) runWrite(ctx context.Context, items []tiers.Item) error {
	s.putting.Add(1)
	defer s.putting.Add(-1)
	what := fmt.Sprintf("write of %d blocks", len(items))
	j := &writing{s: s}
	var err error
	left := s.writes.Run(ctx, what, &j.Job, func() {
		defer s.endJob()
		err = j.write(ctx, items)
		if err != nil && j.Settle() {
			s.leave(items)
		}
	})
	if left == nil {
		return err
	}
	s.leave(items)
	var busy *pool.Busy
	if !errors.As(left, &busy) {
		s.endJob()
	} else if f := j.file.Load(); f != nil {
		s.detach(f)
	}
	return left
}

// write puts one frame into a segment and publishes it. Lack of space is tried
// once more in a new file, which a file system of many targets may place
// where there is room.
func (j *writing) write(ctx context.Context, items []tiers.Item) error {
	s := j.s
	load := newLoad(s)
	names := load.names
	if len(items)+len(names) == 0 {
		return nil
	}
	all := blocksOf(items)
	_, need := format.FrameSize(all, names)
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	var err error
	if !closed { // the last write of a store that is being closed is tried in any case
		err = s.watch.MayWrite()
	}
	if err == nil {
		err = s.room.Check(need, len(items))
	}
	if err == nil {
		err = s.lease.Verify(ctx)
	}
	if err == nil && s.opt.Compress {
		var free func()
		free, err = payload.Encode(ctx, s.coder, all)
		defer free()
	}
	for attempt := 0; err == nil && attempt < 2; attempt++ {
		if err = j.writeOnce(ctx, all, names, attempt > 0); err == nil || !isFull(err) {
			break
		}
		if attempt == 0 {
			err = nil
		}
	}
	load.end(s, err == nil && !j.unindexed) // what the indexer lacks is given to it again with the next frame
	what := fmt.Sprintf("write of %d blocks", len(items))
	switch {
	case err == nil:
		return nil
	case isFull(err):
		s.room.Fill()
	case errors.Is(err, tiers.ErrUnavailable):
		return err
	}
	return unwritten(what, err)
}

// writeOnce writes to the current segment. again: another one had no
// room, so that a new one is tried whatever statfs reports.
func (j *writing) writeOnce(ctx context.Context, items []format.Block, names []format.Record, again bool) error {
	s := j.s
	_, need := format.FrameSize(items, names)
	f, err := j.appendable(ctx, need, len(items))
	if err != nil {
		return err
	}
	defer s.unuse(f)
	if f.w.Frames == 0 && !again {
		if err := s.room.CheckNewFile(need, len(items)); err != nil {
			f.appending.Release()
			return err
		}
	}
	fr, err := s.append(f, items, names)
	if f.path != "" {
		s.note(f, items, names, true)
	}
	f.appending.Release()
	if err == nil {
		err = f.syncWithin(ctx, fr.number, f.fsync)
	}
	if err == nil {
		err = s.lease.VerifyFor(ctx, f.id.Incarnation)
	}
	if err != nil {
		s.detach(f)
		return err
	}
	j.unindexed = s.indexFrame(ctx, f, items, fr) != nil
	if !j.Settle() {
		return ctx.Err() // the caller has an error: nothing is stored
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.gone {
		return unavailable("write", errGone)
	}
	for i, it := range items {
		s.indexLocked(f, it.Info, it.As, fr.offs[i])
		delete(s.arriving, it.Info.ID) // in one step: it may be evicted and put again at once
	}
	s.noteLinksLocked(f, names)
	return nil
}

// note accounts for records even when the write failed: they may be on disk.
// Only those that count are preferred to other copies of themselves.
func (s *Store) note(f *file, items []format.Block, names []format.Record, count bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.Spend(f.w.Off - f.size)
	f.size = f.w.Off
	for _, it := range items {
		for _, n := range it.Names {
			s.noteLocked(f, format.Record{ID: it.Info.ID, Name: n}, count)
		}
	}
	for _, r := range names {
		if r.Layout == nil {
			s.noteLocked(f, r, count)
		}
	}
}

// written is a frame that lies in a file.
type written struct {
	number  uint64
	end     int64           // of the frame
	offs    []int64         // where in the file the payloads lie
	records []format.Record // in it besides the names of its blocks
}

// append writes one frame at the end of f, making the file if it is the first. The
// caller holds f.appending.
func (s *Store) append(f *file, items []format.Block, names []format.Record) (written, error) {
	first := f.w.Frames == 0
	var dir string
	var err error
	if first {
		if dir, f.id.Incarnation, err = s.lease.OwnDir(context.Background()); err != nil {
			return written{}, f.fail(err)
		}
	}
	if more := s.layouts.Missing(f.layouts, items, names); len(more) > 0 {
		names = append(slices.Clip(names), more...)
	}
	fr := f.w.Build(f.id, items, names, f.durable())
	defer fr.Free()
	if first {
		s.makeRoom()
		err = f.create(s.fs, dir, fr.Bufs, s.opt.Layout, s.opt.Now())
		if errors.Is(err, os.ErrNotExist) { // somebody has removed the directory
			s.lease.DirLost()
			if dir, n, lost := s.lease.OwnDir(context.Background()); lost == nil && n == f.id.Incarnation {
				err = f.create(s.fs, dir, fr.Bufs, s.opt.Layout, s.opt.Now())
			}
		}
		if err == nil {
			s.isOpen(f)
		}
	} else {
		_, err = f.handle.Pwritev(fr.Bufs, f.w.Off)
	}
	if err != nil {
		return written{}, f.fail(err)
	}
	number := f.w.Frames
	f.w.Add(fr)
	f.wrote(f.w.Frames)
	return written{number, f.w.Off, fr.Offs, names}, nil
}

// appendable returns the current segment, ready to take need bytes, with
// f.appending held and a user counted. A segment that is full is sealed.
func (j *writing) appendable(ctx context.Context, need int64, blocks int) (*file, error) {
	s := j.s
	for {
		f := s.use()
		j.file.Store(f)
		if err := f.appending.Acquire(ctx); err != nil {
			s.unuse(f)
			return nil, unavailable("wait for another write", err)
		}
		if s.isCurrent(f) {
			if f.poisoned() == nil && !f.isFull(&s.opt, need, blocks) {
				return f, nil
			}
			s.detach(f)
			f.seal() // its failure poisons f, which gets no more frames anyway
			s.noteSealed(f)
		}
		f.appending.Release()
		s.unuse(f)
	}
}

// use returns the current segment, a new one if there is none.
func (s *Store) use() *file {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		s.current = s.newFileLocked()
	}
	s.current.users++
	return s.current
}

func (s *Store) unuse(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unuseLocked(f)
}

func (s *Store) isCurrent(f *file) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current == f
}

// detach makes sure that f gets no more frames.
func (s *Store) detach(f *file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.done = true
	if s.current == f {
		s.current = nil
	}
}
