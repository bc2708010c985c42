package segment

import (
	"fmt"
	"path/filepath"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// subjects finds out what is to be read, or why a read is none; end is called
// when the batch holds what it needs.
func (s *Store) subjects(reads []tiers.Read) (subs []subject, errs []error, end func()) {
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
	return &farBlock{s: a.s, file: f, place: p, info: info}, nil
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
	file  *farFile
	place tiers.Segment
	info  block.Info
}

func (b *farBlock) String() string { return b.info.ID.String() + " in " + b.place.Path }

func (b *farBlock) size() int64 { return b.info.Size }

func (b *farBlock) extent(dst []byte) (f source, off, size int64, at int) {
	as := payloadAt(b.place)
	return b.file, b.place.Offset, as.Size, b.s.landing(as, dst)
}

func (b *farBlock) verify(dst []byte, at int) error { return b.s.verifyPlace(b.place, b.info, dst, at) }

func (b *farBlock) failed(err error) error { return placeFailed(b.place, b.info, err) }

func (b *farBlock) alone(dst []byte) error { return b.s.readPlace(b.place, b.file.id, b.info, dst) }
