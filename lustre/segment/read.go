package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// Ref is the tiers.Pin of a Store.
type Ref struct {
	s        *Store
	loc      *location
	released atomic.Bool
}

// Pin implements tiers.Tier. The result is a *Ref.
func (s *Store) Pin(id block.ID) (tiers.Pin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return nil, err
	}
	loc.pins++
	loc.file.users++
	s.pins++
	return &Ref{s: s, loc: loc}, nil
}

// Bytes implements tiers.Pin: a file has no memory of its own.
func (r *Ref) Bytes() []byte { return nil }

// Offset implements tiers.Pin.
func (r *Ref) Offset() int64 { return -1 }

// Lend implements tiers.Pin.
func (r *Ref) Lend() bool { return false }

// Info returns the block's facts.
func (r *Ref) Info() block.Info { return r.loc.info }

// Release gives the reference back. Calls after the first do nothing.
func (r *Ref) Release() {
	if r.released.Swap(true) {
		return
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.loc.pins--
	r.s.pins--
	r.s.unuseLocked(r.loc.file)
	r.s.idle.Broadcast()
}

// ReadInto reads the block straight into dst (len(dst) == Info().Size) and
// verifies its CRC32C. When ctx ends first the error is a *Busy, and dst may be
// written to until its Done is closed; after any other return dst is the
// caller's again. Errors: ErrCorrupt (the block is withdrawn), ErrUnavailable
// (withdrawn too, when its file is gone), ErrBadItem.
func (r *Ref) ReadInto(ctx context.Context, dst []byte) error {
	if int64(len(dst)) != r.loc.info.Size {
		return fmt.Errorf("%w: %d bytes of room for %d", ErrBadItem, len(dst), r.loc.info.Size)
	}
	s := r.s
	s.mu.Lock()
	r.loc.file.users++ // the job's own: it may outlive the reference
	s.jobs++
	s.mu.Unlock()
	end := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unuseLocked(r.loc.file)
		s.jobs--
		s.idle.Broadcast()
	}
	err := s.reads.Within(ctx, "read of "+r.loc.info.ID.String(), end, func() error { return s.read(r.loc, dst) })
	s.faults.count(err)
	return err
}

// A reference is a subject of a batch.
var _ subject = (*Ref)(nil)

// String implements subject.
func (r *Ref) String() string { return r.loc.info.ID.String() }

func (r *Ref) size() int64 { return r.loc.info.Size }

func (r *Ref) extent(dst []byte) (f source, off, size int64, at int) {
	return r.loc.file, r.loc.off, r.loc.as.Size, r.s.landing(r.loc.as, dst)
}

func (r *Ref) verify(dst []byte, at int) error { return r.s.verify(r.loc, dst, at) }

func (r *Ref) failed(err error) error { return r.s.readFailed(r.loc, err) }

func (r *Ref) alone(dst []byte) error { return r.s.read(r.loc, dst) }

// read fills dst and turns every failure into a miss of the right kind.
func (s *Store) read(loc *location, dst []byte) error {
	at := s.landing(loc.as, dst)
	if err := s.fetch(loc, dst[at:][:loc.as.Size]); err != nil {
		return err
	}
	return s.verify(loc, dst, at)
}

// fetch reads the payload as stored, without a look at it.
func (s *Store) fetch(loc *location, payload []byte) error {
	err := s.pread(loc.file, payload, loc.off)
	if errors.Is(err, vfs.ErrStale) {
		if err = loc.file.reopen(s.fs); err == nil {
			err = s.pread(loc.file, payload, loc.off)
		}
	}
	if err == nil {
		return nil
	}
	return s.readFailed(loc, err)
}

// readFailed turns an error of the file system into a miss of the right kind.
func (s *Store) readFailed(loc *location, err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return s.withdraw(loc, "the file ends early")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, trust.ErrRefused):
		n := s.dropFile(loc.file)
		return unavailable(fmt.Sprintf("segment is gone with %d blocks, perhaps purged", n), err)
	}
	return unavailable("read", err)
}

// verify makes dst, where the payload has been read to, the block.
func (s *Store) verify(loc *location, dst []byte, at int) error {
	why, err := s.unpack(loc.info, loc.as, dst, at)
	switch {
	case why != "":
		return s.withdraw(loc, why)
	case err != nil:
		return unavailable("read", err)
	}
	return nil
}

func (s *Store) pread(f *file, dst []byte, off int64) error {
	if len(dst) == 0 {
		return nil
	}
	h, err := f.open(s)
	if err == nil {
		_, err = h.Pread(dst, off)
		s.forget(h.File, off, int64(len(dst)))
		h.back(err != nil)
	}
	return err
}

const (
	// forgetFrom is the least read, in bytes, that is worth a call to drop it
	// from the page cache.
	forgetFrom = 64 << 10

	// folio is the largest piece that the page cache keeps, and drops only as
	// a whole.
	folio = 2 << 20
)

// forget drops what was read from the page cache: from there it takes the
// job's memory a second time. What lies before it in its first piece goes with
// it; what lies behind may have been read ahead and stays.
func (s *Store) forget(h vfs.File, off, n int64) {
	if n >= forgetFrom {
		start := off &^ (folio - 1)
		_ = vfs.Forget(h, start, off+n-start) // a hint
	}
}
