package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

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
	files := farFiles{s: s}
	for i, r := range reads {
		ref, own := r.Pin.(*Ref)
		switch {
		case r.Pin == nil && closed != nil:
			errs[i] = closed
		case r.Pin == nil:
			subs[i], errs[i] = files.block(r.At, r.Info)
		case !own || ref.s != s:
			errs[i] = fmt.Errorf("%w: a pin of another tier", ErrBadItem)
		default:
			subs[i] = ref
		}
	}
	return subs, errs, end
}

// farFiles are the files of one batch that are known by their names alone.
type farFiles struct {
	s    *Store
	open map[string]*farFile
}

// block returns what is to be read of a place.
func (a *farFiles) block(p tiers.Segment, info block.Info) (subject, error) {
	id, err := holds(p, info)
	if err != nil {
		return nil, err
	}
	f := a.open[p.Path]
	if f == nil {
		f = &farFile{handles: a.s.handles, path: p.Path, id: id}
		if a.open == nil {
			a.open = map[string]*farFile{}
		}
		a.open[p.Path] = f
	}
	return &farBlock{s: a.s, id: id, file: f, place: p, info: info}, nil
}

// farFile is a source outside the index.
type farFile struct {
	handles *handles
	path    string // relative to the common directory
	id      format.FileID
}

func (f *farFile) ident() format.FileID { return f.id }

func (f *farFile) where() string { return filepath.Join(f.handles.opt.Dir, f.path) }

func (f *farFile) open(*Store) (lent, error) {
	h := f.handles.take(f.path)
	file, err := f.handles.opened(h, f.id)
	if err != nil {
		f.handles.give(h, true)
		return lent{}, err
	}
	return lent{File: file, far: h, handles: f.handles}, nil
}

// retain implements source: another process decides how long the file is there.
func (f *farFile) retain(*Store) {}

func (f *farFile) release(*Store) {}

// farBlock is a block in a file that is not in the index.
type farBlock struct {
	s     *Store
	id    format.FileID
	file  *farFile // in a batch
	place tiers.Segment
	info  block.Info
}

func (b *farBlock) String() string { return b.info.ID.String() + " in " + b.place.Path }

func (b *farBlock) size() int64 { return b.info.Size }

func (b *farBlock) extent(dst []byte) (f source, off, size int64, at int) {
	as := payloadAt(b.place)
	return b.file, b.place.Offset, as.Size, b.s.access.landing(as, dst)
}

func (b *farBlock) verify(dst []byte, at int) error {
	why, err := unpack(b.s.coder, b.info, payloadAt(b.place), dst, at)
	if why != "" {
		err = format.Errorf("payload at %d: %s", b.place.Offset, why)
	}
	return b.failed(err)
}

// failed gives an error its kind; nil stays nil.
func (b *farBlock) failed(err error) error {
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

// alone reads the payload and makes dst the block, and once more when the file
// system calls the handle stale.
func (b *farBlock) alone(dst []byte) error {
	as := payloadAt(b.place)
	at := b.s.access.landing(as, dst)
	fetch := func(f vfs.File) error {
		if as.Size == 0 {
			return nil
		}
		_, err := f.Pread(dst[at:][:as.Size], b.place.Offset)
		forget(f, b.place.Offset, as.Size)
		return err
	}
	err := b.s.handles.with(b.place.Path, b.id, fetch)
	if errors.Is(err, vfs.ErrStale) {
		err = b.s.handles.with(b.place.Path, b.id, fetch)
	}
	if err != nil {
		return b.failed(err)
	}
	return b.verify(dst, at)
}
