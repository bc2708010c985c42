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
	"cascadekv/lustre/segment/payload"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// Ref is the tiers.Pin of a Store.
type Ref struct {
	tiers.InFile
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
	return r.s.ReadBatch(ctx, []tiers.Read{{Pin: r, Dst: dst}})[0]
}

// A reference is a subject of a batch.
var _ subject = (*Ref)(nil)

// String implements subject.
func (r *Ref) String() string { return r.loc.info.ID.String() }

func (r *Ref) size() int64 { return r.loc.info.Size }

func (r *Ref) extent(dst []byte) (f source, off, size int64, at int) {
	return r.loc.file, r.loc.off, r.loc.as.Size, r.s.access.payloadStart(r.loc.as, dst)
}

// verify makes dst, where the payload has been read to, the block.
func (r *Ref) verify(dst []byte, at int) error {
	why, err := payload.Decode(r.s.coder, r.loc.info, r.loc.as, dst, at)
	switch {
	case why != "":
		return r.s.withdraw(r.loc, why)
	case err != nil:
		return unavailable("read", err)
	}
	return nil
}

// failed turns an error of the file system into a miss of the right kind.
func (r *Ref) failed(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return r.s.withdraw(r.loc, "the file ends early")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, trust.ErrRefused):
		n := r.s.dropFile(r.loc.file)
		return unavailable(fmt.Sprintf("segment is gone with %d blocks, perhaps purged", n), err)
	}
	return unavailable("read", err)
}

// pread fills dst from a file, once more when the file system calls its handle
// stale.
func pread(s *Store, f source, dst []byte, off int64) error {
	once := func() error {
		h, err := f.open(s)
		if err == nil {
			_, err = h.Pread(dst, off)
			forget(h.File, off, int64(len(dst)))
			h.back(err != nil)
		}
		return err
	}
	if len(dst) == 0 {
		return nil
	}
	err := once()
	if errors.Is(err, vfs.ErrStale) {
		if err = f.renew(s); err == nil {
			err = once()
		}
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
func forget(h vfs.File, off, n int64) {
	if n >= forgetFrom {
		start := off &^ (folio - 1)
		_ = vfs.Forget(h, start, off+n-start) // a hint
	}
}
