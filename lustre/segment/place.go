package segment

import (
	"context"
	"fmt"
	"math"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// maxOffset keeps sums of offsets from overflowing.
const maxOffset = math.MaxInt64 / 4

// placed is the place of a payload at off of the segment of that path.
func placed(as format.Payload, path string, off int64) tiers.Segment {
	return tiers.Segment{Path: path, Offset: off, Stored: as.Size, StoredCRC: as.CRC, Codec: uint8(as.Codec)}
}

// payloadAt is how the payload at p is stored.
func payloadAt(p tiers.Segment) format.Payload {
	return format.Payload{Size: p.Stored, CRC: p.StoredCRC, Codec: codec.Number(p.Codec)}
}

// Segment returns where a block lies, also one of another rank that was read by
// Recover. It is durable.
func (s *Store) Segment(id block.ID) (tiers.Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	loc, err := s.findLocked(id)
	if err != nil {
		return tiers.Segment{}, err
	}
	f := loc.file.id
	return placed(loc.as, f.Path(), loc.off), nil
}

// holds returns which segment p names, if it can hold the block.
func holds(p tiers.Segment, info block.Info) (format.FileID, error) {
	id, ok := format.ParsePath(p.Path)
	switch {
	case info.ID.IsZero() || info.ID.IsProvisional():
		return id, fmt.Errorf("lustre: %w: segments hold no block %v", tiers.ErrNotFound, info.ID)
	case p.Offset < format.PageSize || p.Offset > maxOffset:
		return id, fmt.Errorf("lustre: %w: %s has no payload at %d", tiers.ErrNotFound, p.Path, p.Offset)
	case !payloadAt(p).Fits(info):
		return id, fmt.Errorf("lustre: %w: %v, %d bytes, is not stored in %d with %v", tiers.ErrNotFound, info.ID, info.Size, p.Stored, codec.Number(p.Codec))
	case !ok:
		return id, fmt.Errorf("lustre: %w: %.80q is no segment's name", tiers.ErrNotFound, p.Path)
	}
	return id, nil
}

// ReadSegment reads a block of any rank from where its owner put it, straight
// into dst (len(dst) == info.Size), with one call once the file is open. The
// file's header must name that file, and the bytes must match the checksums of p
// and info. When ctx ends first the error is a *Busy, and dst may be written to
// until its Done is closed; after any other return dst is the caller's again,
// undefined after an error. Errors: ErrNotFound (the file is gone, or nothing of
// info's can be at p), ErrCorrupt (what is there does not match, or the file ends
// early), ErrUnavailable, ErrBadItem.
func (s *Store) ReadSegment(ctx context.Context, p tiers.Segment, info block.Info, dst []byte) error {
	return s.ReadBatch(ctx, []tiers.Read{{At: p, Info: info, Dst: dst}})[0]
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
		f.Close() // only read: its error means nothing
	}()
}
