package segment

import (
	"context"

	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// Incarnations lists those with a directory, of all ranks, this store's own
// among them once it has one. Errors: ErrUnavailable.
func (s *Store) Parts(ctx context.Context) ([]tiers.Part, error) {
	var all []tiers.Part
	err := s.readJob(ctx, "list of incarnations", func() error {
		names, err := s.fs.ReadDir(s.opt.Dir)
		if err != nil {
			return unavailable("list incarnations", err)
		}
		all = format.Parts(names)
		return nil
	})
	if err != nil {
		return nil, err // what runs on may still set all
	}
	return all, nil
}

// Adopt reads the segments of an incarnation that Recover left out, at any time,
// and calls fn as Recover does; of segments that were read before it passes only
// what was added since. A segment that its rank still writes is taken as it is
// now. One of this rank number becomes this run's own as soon as its owner has
// ended: then fn is called for its blocks again. For what ctx ends, fn is called
// nothing. Errors: ErrUnavailable, ErrClosed, those of fn.
func (s *Store) Adopt(ctx context.Context, one tiers.Part, fn func(tiers.Entry) error) error {
	return (&recovery{s: s}).adopt(ctx, one, fn)
}

// AdoptOrphan is Adopt for an incarnation of another rank number whose owner has
// ended: it becomes this run's own, which may then unlink and merge its files. It
// reports whether that is so; of one whose owner lives nothing is read. Errors:
// those of Adopt.
func (s *Store) AdoptOrphan(ctx context.Context, one tiers.Part, fn func(tiers.Entry) error) (bool, error) {
	r := &recovery{s: s, Round: lease.Round{AdoptOrphans: true}, ownOnly: true}
	if err := r.adopt(ctx, one, fn); err != nil {
		return false, err // what runs on may still set r
	}
	return r.owned, nil
}

// adopt reads an incarnation as r has it, and calls fn.
func (r *recovery) adopt(ctx context.Context, one tiers.Part, fn func(tiers.Entry) error) error {
	s := r.s
	r.known, r.newest = map[string]*file{}, map[nameKey]format.Record{}
	s.mu.Lock()
	for f := range s.files {
		if f.loaded {
			r.known[f.path] = f
		}
	}
	s.mu.Unlock()
	err := s.readJob(ctx, "adoption of "+format.Dir(one), func() error {
		r.loadIncarnation(one)
		return nil
	})
	if err != nil {
		return err
	}
	err = r.handOver(fn)
	s.reclaimSoon()
	return err
}

// readJob runs fn among the readers; when ctx ends first it goes on alone, and
// the error is a *Busy.
func (s *Store) readJob(ctx context.Context, what string, fn func() error) error {
	if err := s.admit(nil); err != nil {
		return err
	}
	return s.reads.Within(ctx, what, s.endJob, fn)
}
