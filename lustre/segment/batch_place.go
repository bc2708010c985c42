package segment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
)

// subjects finds out what is to be read, or why a read is none; end is called
// when the batch holds what it needs. Of blocks by their places that takes a
// batch of its own: their entries lead on to the payloads, and those of one frame
// lie side by side.
func (s *Store) subjects(ctx context.Context, reads []Read) (subs []subject, errs []error, end func()) {
	subs, errs = make([]subject, len(reads)), make([]error, len(reads))
	var far []int
	for i, r := range reads {
		switch {
		case r.Ref == nil:
			far = append(far, i)
		case r.Ref.s != s:
			errs[i] = fmt.Errorf("%w: a reference of another store", ErrBadItem)
		default:
			subs[i] = r.Ref
		}
	}
	if len(far) == 0 {
		return subs, errs, func() {}
	}
	if err := s.admit(nil); err != nil { // no reference keeps the store open
		for _, i := range far {
			errs[i] = err
		}
		return subs, errs, func() {}
	}
	s.findFar(ctx, reads, far, subs, errs)
	return subs, errs, s.endJob
}

// findFar is subjects for the reads by place, whose numbers are far.
func (s *Store) findFar(ctx context.Context, reads []Read, far []int, subs []subject, errs []error) {
	entries := newBatch(ctx, s, len(far))
	files := farFiles{s: s}
	for j, i := range far {
		e := &farEntry{s: s, place: reads[i].Place, info: reads[i].Info}
		e.file, errs[i] = files.of(e.place, e.info)
		entries.add(j, Read{Dst: e.bytes[:]}, e, errs[i])
		subs[i] = e
	}
	files = farFiles{s: s} // what is held for the entries is given back
	for j, err := range entries.run() {
		i := far[j]
		e := subs[i].(*farEntry)
		if busy, ok := errors.AsType[*Busy](err); ok {
			err = unavailable(busy.what, busy.cause) // the block's own memory was not touched
		}
		if errs[i] = err; err != nil {
			continue
		}
		f := &farBlock{farEntry: e}
		f.file, errs[i] = files.of(e.place, e.info)
		subs[i] = f
	}
}

// farFiles are the files of one batch that are known by their names alone.
type farFiles struct {
	s    *Store
	open map[string]*farFile
}

// of returns the file that is said to hold a block.
func (a *farFiles) of(p Place, info block.Info) (*farFile, error) {
	id, err := p.holds(info)
	if err != nil {
		return nil, err
	}
	f := a.open[p.Path]
	if f == nil {
		if a.open == nil {
			a.open = map[string]*farFile{}
		}
		f = &farFile{handles: a.s.handles, path: p.Path, id: id}
		a.open[p.Path] = f
	}
	return f, nil
}

// farFile is a source outside the index.
type farFile struct {
	handles *handles
	path    string // relative to the common directory
	id      fileID
	handle  *handle // while it is retained
}

func (f *farFile) ident() fileID { return f.id }

func (f *farFile) where() string { return filepath.Join(f.handles.opt.Dir, f.path) }

func (f *farFile) open(vfs.FS) (vfs.File, error) { return f.handles.opened(f.handle, f.id) }

func (f *farFile) retain(*Store) { f.handle = f.handles.take(f.path) }

func (f *farFile) release(_ *Store, failed bool) { f.handles.give(f.handle, failed) }

// farEntry is a block's entry in a file that is not in the index.
type farEntry struct {
	s     *Store
	file  *farFile
	place Place
	info  block.Info
	bytes [blockEntrySize]byte
	entry entry // once it was verified
}

func (e *farEntry) String() string { return e.info.ID.String() + " in " + e.place.Path }

func (e *farEntry) size() int64 { return blockEntrySize }

func (e *farEntry) extent([]byte) (f source, off, size int64, at int) {
	return e.file, e.place.Record, blockEntrySize, 0
}

func (e *farEntry) verify(p []byte, _ int) (err error) {
	e.entry, err = e.place.entry(p, e.info)
	return e.place.failed(e.info, err)
}

func (e *farEntry) failed(err error) error { return e.place.failed(e.info, err) }

func (e *farEntry) alone(p []byte) error {
	err := e.s.again(e.place.Path, e.file.id, func(f vfs.File) error {
		_, err := f.Pread(p, e.place.Record)
		return err
	})
	if err != nil {
		return e.failed(err)
	}
	return e.verify(p, 0)
}

// farBlock is a block of which the entry was read.
type farBlock struct{ *farEntry }

func (b *farBlock) size() int64 { return b.info.Size }

func (b *farBlock) extent(dst []byte) (f source, off, size int64, at int) {
	as := b.entry.as()
	return b.file, b.place.Base + b.entry.off, as.size, b.s.landing(as, dst)
}

func (b *farBlock) verify(dst []byte, at int) error {
	why, err := b.s.unpack(b.info, b.entry.as(), dst, at)
	if why != "" {
		err = badFormat("%s", why)
	}
	return b.failed(err)
}

func (b *farBlock) alone(dst []byte) error { return b.s.readPlace(b.place, b.file.id, b.info, dst) }
