package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
)

// Place says where the BLOCK entry of a stored block lies, so that a process
// that does not have the block in its index can read it. The entry leads on to
// the payload. It stays true for as long as the file exists: names of files do
// not come again, for an incarnation has its own directory.
type Place struct {
	Path   string // of the segment, relative to Options.Dir
	Base   int64  // what the entry's offset counts from, in bytes: the start of a frame, or 0
	Record int64  // where the entry starts, in bytes from the file's start
}

// maxOffset keeps sums of offsets from overflowing.
const maxOffset = math.MaxInt64 / 4

// Place returns where a block's entry lies. It is durable. Errors: ErrNotFound.
func (s *Store) Place(id block.ID) (Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return Place{}, err
	}
	f := loc.file.id
	return Place{
		Path: filepath.Join(incarnationName(f.rank, f.incarnation), segmentName(f)),
		Base: loc.base, Record: loc.record,
	}, nil
}

// file returns which segment p names. Only the names that this package gives
// can be in it, so it cannot lead out of the directory.
func (p Place) file() (fileID, error) {
	dir, name, _ := strings.Cut(p.Path, "/")
	rank, incarnation, ok := parseIncarnation(dir)
	id, isSegment := parseSegment(name)
	if !ok || !isSegment || id.rank != rank {
		return id, fmt.Errorf("%w: %.80q is no segment's name", ErrNotFound, p.Path)
	}
	if p.Base < 0 || p.Record < max(p.Base, pageSize) || p.Record > maxOffset {
		return id, fmt.Errorf("%w: %s has no entry at %d", ErrNotFound, p.Path, p.Record)
	}
	id.incarnation = incarnation
	return id, nil
}

// ReadPlace reads a block of any rank from where its owner said it is, straight
// into dst (len(dst) == info.Size). The file's header must name that file, the
// entry must name info's id, size and checksum, and the bytes must match it.
// When ctx ends first the error is a *Busy, and dst may be written to until its
// Done is closed; after any other return dst is the caller's again, undefined
// after an error. Errors: ErrNotFound (the file is gone, or there is none of
// that name), ErrCorrupt (all else that does not match, also a file that ends
// early), ErrUnavailable, ErrBadItem.
func (s *Store) ReadPlace(ctx context.Context, p Place, info block.Info, dst []byte) error {
	if int64(len(dst)) != info.Size {
		return fmt.Errorf("%w: %d bytes of room for %d", ErrBadItem, len(dst), info.Size)
	}
	id, err := p.holds(info)
	if err == nil {
		err = s.readJob(ctx, "read of "+info.ID.String()+" in "+p.Path, func() error { return s.readPlace(p, id, info, dst) })
	}
	s.faults.count(err)
	return err
}

// holds returns which segment p names, if it can hold the block.
func (p Place) holds(info block.Info) (fileID, error) {
	if info.ID.IsZero() || info.ID.IsProvisional() {
		return fileID{}, fmt.Errorf("%w: segments hold no block %v", ErrNotFound, info.ID)
	}
	return p.file()
}

// readPlace gives every failure its kind.
func (s *Store) readPlace(p Place, id fileID, info block.Info, dst []byte) error {
	return p.failed(info, s.again(p.Path, id, func(f vfs.File) error { return s.readRecord(f, p, info, dst) }))
}

// again calls read with a segment, and once more when the file system calls the
// handle stale.
func (s *Store) again(path string, id fileID, read func(vfs.File) error) error {
	err := s.handles.with(path, id, read)
	if errors.Is(err, vfs.ErrStale) {
		err = s.handles.with(path, id, read)
	}
	return err
}

// failed gives an error of reading the block at p its kind; nil stays nil.
func (p Place) failed(info block.Info, err error) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("%v in %s", info.ID, p.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %s: %w", ErrNotFound, what, err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, ErrBadFormat):
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, what, err)
	}
	return unavailable("read of "+what, err)
}

// readRecord reads the entry and then the payload. What does not match info
// is ErrBadFormat.
func (s *Store) readRecord(f vfs.File, p Place, info block.Info, dst []byte) error {
	buf := make([]byte, blockEntrySize)
	if _, err := f.Pread(buf, p.Record); err != nil {
		return err
	}
	e, err := p.entry(buf, info)
	if err != nil {
		return err
	}
	as := e.as()
	at := s.landing(as, dst)
	if as.size > 0 {
		if _, err := f.Pread(dst[at:][:as.size], p.Base+e.off); err != nil {
			return err
		}
		s.forget(f, p.Base+e.off, as.size)
	}
	why, err := s.unpack(info, as, dst, at)
	if why != "" {
		return badFormat("%s", why)
	}
	return err
}

// entry decodes the entry at p, which must be info's. Errors match ErrBadFormat.
func (p Place) entry(buf []byte, info block.Info) (entry, error) {
	e, err := decodeRecord(buf, p.Record-p.Base)
	if err == nil && e.info != info {
		err = badFormat("the entry at %d is of %v, %d bytes, CRC32C %08x", p.Record, e.info.ID, e.info.Size, e.info.CRC)
	}
	return e, err
}

// decodeRecord reads the fixed part of a BLOCK entry alone; at is where it lies
// relative to what its offset counts from. There is no checksum over it: the
// caller knows what must be in it. Errors match ErrBadFormat.
func decodeRecord(p []byte, at int64) (entry, error) {
	if len(p) != blockEntrySize || le.Uint16(p) != kindBlock {
		return entry{}, badFormat("no BLOCK")
	}
	flags := le.Uint16(p[2:])
	if inline := flags&flagInline != 0; inline && int64(le.Uint64(p[56:])) != at+blockEntrySize {
		return entry{}, badFormat("inline payload at %d of an entry at %d", le.Uint64(p[56:]), at)
	}
	e, known, err := decodeBlock(p, flags&^flagInline, at, maxOffset)
	if err == nil && !known {
		err = badFormat("BLOCK with the unknown %v", e.codec)
	}
	return e, err
}

// closeSoon closes a file that was only read, in the background: that may hang.
func (s *Store) closeSoon(f vfs.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs++
	go func() {
		defer s.endJob()
		s.reads <- struct{}{}
		defer func() { <-s.reads }()
		f.Close() // only read: its error tells nothing
	}()
}
