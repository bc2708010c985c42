package store

import (
	"context"
	"fmt"

	"cascadekv/tiers"
)

// grow makes the groups of containers that are missing, one after the other, until all are there, the disk is
// full or the store is closed.
func (s *Store) grow() {
	defer s.late.Done()
	defer close(s.pool.grown)
	for g := range s.pool.groups() {
		if s.pool.ready(g) {
			continue
		}
		all, err := s.pool.make(s.alive, g)
		if err != nil {
			s.mu.Lock()
			s.mu.short = s.shortOf(err)
			s.mu.Unlock()
			return
		}
		for d, f := range all {
			s.ring.Add(g*len(all)+d, f)
		}
		s.mu.Lock()
		s.pool.set(g, all)
		for file, end := s.pool.group(g); file < end; file++ {
			s.mu.free.files = append(s.mu.free.files, uint32(file))
			s.mu.stats.Files++
		}
		s.mu.stats.Bytes += int64(len(all)) * s.layout.containerBytes()
		s.mu.Unlock()
	}
}

// diskFull is a lack of room that no eviction ends. It matches tiers.ErrFull.
type diskFull struct{ error }

// Unwrap implements errors.Is.
func (e diskFull) Unwrap() []error { return []error{e.error, tiers.ErrFull} }

// shortOf makes the error of a group that could not be made one of the store.
func (s *Store) shortOf(err error) error {
	switch {
	case s.alive.Err() != nil:
		return fmt.Errorf("nvme: %w", tiers.ErrClosed)
	case isFull(err):
		return diskFull{fmt.Errorf("nvme: no room for a container of %d bytes more in each of %q: free space there and open it again, or have fewer files: %w", s.layout.containerBytes(), s.pool.dirs, err)}
	}
	return fmt.Errorf("%w: nvme: a container of the pool: %w", tiers.ErrUnavailable, err)
}

// Ready returns how many GPU files the pool has by now, how many were asked for, and, once no more are made although
// some are missing, why: tiers.ErrFull (of the disk), tiers.ErrUnavailable, tiers.ErrClosed.
func (s *Store) Ready() (files, wanted int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.stats.Files, s.pool.wanted, s.mu.short
}

// WaitGrown returns when all GPU files are ready, or no more are made, with the error that Ready returns then.
// Errors: the context's, too.
func (s *Store) WaitGrown(ctx context.Context) error {
	select {
	case <-s.pool.grown:
		_, _, err := s.Ready()
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: nvme: the pool has not grown: %w", tiers.ErrUnavailable, context.Cause(ctx))
	}
}
