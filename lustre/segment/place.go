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
	"cascadekv/internal/fault"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
)

// Place says where the payload of a stored block lies and how it is stored, so
// that a process that does not have the block in its index can read it. It stays
// true for as long as the file exists: names of files do not come again, for an
// incarnation has its own directory.
type Place struct {
	Path      string // of the segment, relative to Options.Dir
	Offset    int64  // where the payload starts, in bytes from the file's start
	Stored    int64  // bytes of the payload as stored; with codec 0 the block's size
	StoredCRC uint32 // CRC32C of them; with codec 0 the block's
	Codec     uint8  // docs/format.md §1.5
}

// maxOffset keeps sums of offsets from overflowing.
const maxOffset = math.MaxInt64 / 4

// at is the place of a payload at off of the segment of that path.
func (as stored) at(path string, off int64) Place {
	return Place{Path: path, Offset: off, Stored: as.size, StoredCRC: as.crc, Codec: uint8(as.codec)}
}

// as tells how the payload is stored.
func (p Place) as() stored { return stored{p.Stored, p.StoredCRC, codec.Number(p.Codec)} }

// Place returns where a block lies. It is durable. Errors: ErrNotFound.
func (s *Store) Place(id block.ID) (Place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return Place{}, err
	}
	f := loc.file.id
	return loc.as.at(filepath.Join(incarnationName(f.rank, f.incarnation), segmentName(f)), loc.off), nil
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
	id.incarnation = incarnation
	return id, nil
}

// holds returns which segment p names, if it can hold the block.
func (p Place) holds(info block.Info) (fileID, error) {
	switch {
	case info.ID.IsZero() || info.ID.IsProvisional():
		return fileID{}, fmt.Errorf("%w: segments hold no block %v", ErrNotFound, info.ID)
	case p.Offset < pageSize || p.Offset > maxOffset:
		return fileID{}, fmt.Errorf("%w: %s has no payload at %d", ErrNotFound, p.Path, p.Offset)
	case !p.as().fits(info):
		return fileID{}, fmt.Errorf("%w: %v, %d bytes, is not stored in %d with %v", ErrNotFound, info.ID, info.Size, p.Stored, codec.Number(p.Codec))
	}
	return p.file()
}

// ReadPlace reads a block of any rank from where its owner said it is, straight
// into dst (len(dst) == info.Size), with one call once the file is open. The
// file's header must name that file, and the bytes must match the checksums of p
// and info. When ctx ends first the error is a *Busy, and dst may be written to
// until its Done is closed; after any other return dst is the caller's again,
// undefined after an error. Errors: ErrNotFound (the file is gone, or nothing of
// info's can be at p), ErrCorrupt (what is there does not match, or the file ends
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

// readPlace reads the payload at p and makes dst the block, and once more when the
// file system calls the handle stale.
func (s *Store) readPlace(p Place, id fileID, info block.Info, dst []byte) error {
	as := p.as()
	at := s.landing(as, dst)
	fetch := func(f vfs.File) error {
		if as.size == 0 {
			return nil
		}
		_, err := f.Pread(dst[at:][:as.size], p.Offset)
		s.forget(f, p.Offset, as.size)
		return err
	}
	err := s.handles.with(p.Path, id, fetch)
	if errors.Is(err, vfs.ErrStale) {
		err = s.handles.with(p.Path, id, fetch)
	}
	if err != nil {
		return p.failed(info, err)
	}
	return s.verifyPlace(p, info, dst, at)
}

// verifyPlace makes dst, where the payload has been read to, the block.
func (s *Store) verifyPlace(p Place, info block.Info, dst []byte, at int) error {
	why, err := s.unpack(info, p.as(), dst, at)
	if why != "" {
		err = badFormat("payload at %d: %s", p.Offset, why)
	}
	return p.failed(info, err)
}

// failed gives an error of reading the block at p its kind; nil stays nil.
func (p Place) failed(info block.Info, err error) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("%v in %s", info.ID, p.Path)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, ErrRefused):
		return fmt.Errorf("%w: %s: %w", ErrNotFound, what, err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, ErrBadFormat):
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, what, err)
	}
	return unavailable("read of "+what, err)
}

// closeSoon closes a file that was only read, in the background: that may hang.
func (s *Store) closeSoon(f vfs.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs++
	go func() {
		defer fault.Guard()()
		defer s.endJob()
		s.reads <- struct{}{}
		defer func() { <-s.reads }()
		f.Close() // only read: its error tells nothing
	}()
}
