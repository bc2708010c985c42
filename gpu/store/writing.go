package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cascadekv/tiers"
)

// errNotBegun means that a function was not called with the log.
var errNotBegun = errors.New("the log of blocks is in use")

// withLog runs fn with the log, on a goroutine of its own: a disk that hangs keeps that
// one and the log, and the caller until ctx ends. Errors: tiers.ErrClosed,
// tiers.ErrUnavailable with the context's, after which fn may still happen, unless it is
// errNotBegun; those of fn.
func (s *Store) withLog(ctx context.Context, fn func() error) error {
	return s.runWithLog(ctx, false, fn)
}

func (s *Store) runWithLog(ctx context.Context, closing bool, fn func() error) error {
	select {
	case <-s.turn:
	case <-ctx.Done():
		return fmt.Errorf("%w: nvme: %w: %w", tiers.ErrUnavailable, errNotBegun, context.Cause(ctx))
	}
	s.mu.Lock()
	closed := s.mu.closed && !closing
	if !closed {
		s.late.Add(1)
	}
	s.mu.Unlock()
	if closed {
		s.turn <- struct{}{}
		return fmt.Errorf("nvme: %w: %w", tiers.ErrClosed, errNotBegun)
	}
	out := make(chan error, 1)
	go func() {
		defer s.late.Done()
		err := fn()
		s.mu.Lock()
		s.mu.stats.LogBytes = s.log.size
		s.mu.Unlock()
		s.turn <- struct{}{}
		out <- err
	}()
	select {
	case err := <-out:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: nvme: the log of blocks is not written: %w", tiers.ErrUnavailable, context.Cause(ctx))
	}
}

// flush makes the log durable, with all removals and notes that there are; the files of what was
// removed are free then. It is called with the log.
func (s *Store) flush() error {
	s.mu.Lock()
	batch := s.mu.removed
	s.mu.removed = nil
	s.mu.Unlock()
	err := s.append(batch...)
	if err == nil {
		err = s.log.sync()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.mu.removed = append(batch, s.mu.removed...)
		return unavailable(err)
	}
	for _, r := range batch {
		s.freeLocked(r.file)
	}
	return nil
}

// Sync makes all that was committed and removed, and all notes, durable. Errors: tiers.ErrUnavailable,
// tiers.ErrFull (the disk has no room for the log), tiers.ErrClosed.
func (s *Store) Sync(ctx context.Context) error { return s.withLog(ctx, s.flush) }

// logSlack is how large a log may grow besides four times what it would take to
// write it anew.
const logSlack = 1 << 20

// append adds records to the log, and the notes that it does not have. One that has grown too long, or to which
// a write has failed, is replaced first. It is called with the log.
func (s *Store) append(all ...record) error {
	notes, whole := s.notes.Pending()
	if s.log.failed != nil || !whole || s.log.size > logSlack+4*s.shortest() {
		if err := s.renew(); err != nil && (s.log.failed != nil || !whole) {
			return err
		}
		notes, whole = s.notes.Pending() // also if it failed: All was asked in between
	}
	if !whole { // again, while the log was written: the next one has them
		return s.log.append(all...)
	}
	err := s.log.append(slices.Concat(all, noteRecords(notes))...)
	if err == nil {
		s.notes.Written()
	}
	return err
}

// shortest is about the size of a log that was just written.
func (s *Store) shortest() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return page + int64(len(s.mu.blocks)+1)*int64(recordBytes+4*s.layout.objects) + s.log.notes
}

// renew replaces the log by one of the blocks as they are. What was removed and may
// still be read, or is not yet known to be gone, is not among them, and its file stays in use until
// its removal is written.
func (s *Store) renew() error {
	head := s.head
	head.generation++
	next, err := newJournal(s.fs, s.dir, head, s.registered(), s.notes.All)
	s.head = head // a name is not used twice
	if err != nil {
		return err
	}
	s.notes.Written()
	old := s.log
	s.log = next
	_ = old.f.Close()                   // nothing in it counts any more
	_ = s.removeLogs(s.head.generation) // Open passes over older ones
	return nil
}

func unavailable(err error) error {
	if isFull(err) {
		return fmt.Errorf("%w: nvme: the log of blocks: %w", tiers.ErrFull, err)
	}
	return fmt.Errorf("%w: nvme: the log of blocks: %w", tiers.ErrUnavailable, err)
}
