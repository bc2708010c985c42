package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/handles"
	"cascadekv/lustre/segment/payload"
	"cascadekv/lustre/segment/trust"
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

// subjects finds out what is to be read, or why a read is none; end is called
// when the batch holds what it needs.
func (b *batch) subjects(reads []tiers.Read) (subs []subject, errs []error, end func()) {
	s := b.s
	subs, errs, end = make([]subject, len(reads)), make([]error, len(reads)), func() {}
	var closed error
	if slices.ContainsFunc(reads, func(r tiers.Read) bool { return r.Pin == nil }) { // no reference keeps the store open
		if closed = s.admit(nil); closed == nil {
			end = s.endJob
		}
	}
	files := map[string]*locatedFile{}
	for i, r := range reads {
		ref, own := r.Pin.(*Ref)
		switch {
		case r.Pin == nil && closed != nil:
			errs[i] = closed
		case r.Pin == nil:
			subs[i], errs[i] = b.located(files, r)
		case !own || ref.s != s:
			errs[i] = fmt.Errorf("%w: a pin of another tier", ErrBadItem)
		default:
			subs[i] = ref
		}
	}
	return subs, errs, end
}

// located returns what a read by place reads. files are those of the batch.
func (b *batch) located(files map[string]*locatedFile, r tiers.Read) (subject, error) {
	id, err := holds(r.At, r.Info)
	if err != nil {
		return nil, err
	}
	f := files[r.At.Path]
	if f == nil {
		f = &locatedFile{handles: b.s.handles, path: r.At.Path, id: id}
		files[r.At.Path] = f
	}
	return &locatedBlock{s: b.s, file: f, place: r.At, info: r.Info}, nil
}

// locatedFile is a source outside the index.
type locatedFile struct {
	handles *handles.Cache
	path    string // relative to the common directory
	id      format.FileID
}

func (f *locatedFile) ident() format.FileID { return f.id }

func (f *locatedFile) where() string { return f.handles.Path(f.path) }

func (f *locatedFile) open(*Store) (lent, error) {
	h, err := f.handles.Take(f.path, f.id)
	if err != nil {
		return lent{}, err
	}
	return lent{File: h.File(), handle: h, handles: f.handles}, nil
}

// renew implements source: a handle that failed is not used again.
func (f *locatedFile) renew(*Store) error { return nil }

// retain implements source: another process decides how long the file is there.
func (f *locatedFile) retain(*Store) {}

func (f *locatedFile) release(*Store) {}

// locatedBlock is a block in a file that is not in the index.
type locatedBlock struct {
	s     *Store
	file  *locatedFile
	place tiers.Segment
	info  block.Info
}

func (b *locatedBlock) String() string { return b.info.ID.String() + " in " + b.place.Path }

func (b *locatedBlock) size() int64 { return b.info.Size }

func (b *locatedBlock) extent(dst []byte) (f source, off, size int64, at int) {
	as := payloadAt(b.place)
	return b.file, b.place.Offset, as.Size, b.s.access.payloadStart(as, dst)
}

func (b *locatedBlock) verify(dst []byte, at int) error {
	why, err := payload.Decode(b.s.coder, b.info, payloadAt(b.place), dst, at)
	if why != "" {
		err = format.Errorf("payload at %d: %s", b.place.Offset, why)
	}
	return b.failed(err)
}

// failed gives an error its kind; nil stays nil.
func (b *locatedBlock) failed(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, trust.ErrRefused):
		return fmt.Errorf("lustre: %w: %v: %w", tiers.ErrNotFound, b, err)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, format.ErrBadFormat):
		return fmt.Errorf("lustre: %w: %v: %w", tiers.ErrCorrupt, b, err)
	}
	return unavailable("read of "+b.String(), err)
}
