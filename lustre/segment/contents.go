package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// Stored is a block of a segment as its footer or frame has it.
type Stored struct {
	Info block.Info
	At   tiers.Segment
}

// Contents is what counts of one segment, in the order in which it was written.
type Contents struct {
	Size      int64 // of the file
	Sealed    bool  // nothing will be added
	Unchanged bool  // it is neither sealed nor of another size than it was: it was not read
	Blocks    []Stored
	Names     []format.Record
	Layouts   []format.Record
	Damage    error // what was left out, and why; nil for nothing
}

func segmentOf(one tiers.Part, number uint64) format.FileID {
	return format.FileID{Rank: one.Rank, Incarnation: one.Incarnation, Number: number}
}

// Path is the name of a segment as Place has it.
func Path(one tiers.Part, number uint64) string {
	return segmentOf(one, number).Path()
}

// Listing is what a look at an incarnation's directory finds.
type Listing struct {
	Numbers []uint64 // of its segments, in no particular order
	Ended   bool     // its owner can do nothing any more: see AdoptOrphan
}

// Files lists an incarnation's segments, none when its directory is gone. Errors:
// ErrUnavailable, of which some are those of IsRefused, ErrClosed.
func (s *Store) Files(ctx context.Context, one tiers.Part) (Listing, error) {
	var l Listing
	err := s.readJob(ctx, "list of "+format.Dir(one), func() error {
		names, err := s.fs.ReadDir(filepath.Join(s.opt.Dir, format.Dir(one)))
		if errors.Is(err, os.ErrNotExist) {
			l.Ended = true
			return nil
		}
		if err != nil {
			s.guard.Note(filepath.Join(s.opt.Dir, format.Dir(one)), err)
			return unavailable("list "+format.Dir(one), err)
		}
		for _, name := range names {
			if id, ok := format.ParseName(name); ok && id.Rank == one.Rank {
				l.Numbers = append(l.Numbers, id.Number)
			}
		}
		l.Ended = s.lease.HasEnded(one, lease.Tokens(names))
		return nil
	})
	if err != nil {
		return Listing{}, err // what runs on may still append
	}
	return l, nil
}

// Contents reads what counts of a segment of another rank, which need not be
// sealed, and leaves this store's index as it is. One that is not sealed and as
// large as the caller has it is not read again. Errors: ErrNotFound (there
// is no such file any more), ErrBadFormat, those of IsRefused, ErrUnavailable,
// ErrClosed.
func (s *Store) Contents(ctx context.Context, one tiers.Part, number uint64, was int64) (Contents, error) {
	path := Path(one, number)
	var c Contents
	err := s.readJob(ctx, "read of what is in "+path, func() (err error) {
		c, err = readContents(s.fs, filepath.Join(s.opt.Dir, path), segmentOf(one, number), was)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("lustre: %w: %s: %w", tiers.ErrNotFound, path, err)
		case errors.Is(err, format.ErrBadFormat), s.guard.Note(filepath.Join(s.opt.Dir, path), err):
			return fmt.Errorf("%s: %w", path, err)
		case err != nil:
			return unavailable("read what is in "+path, err)
		}
		return nil
	})
	if err != nil {
		return Contents{}, err
	}
	return c, nil
}

// scanners are those of contents, whose memory is used again: a campaign has
// thousands of footers of some hundred KiB.
var scanners = sync.Pool{New: func() any { return new(format.Scanner) }}

func readContents(fs vfs.FS, path string, id format.FileID, was int64) (c Contents, err error) {
	h, err := fs.Open(path)
	if err != nil {
		return c, err
	}
	defer h.Close() // only read: its error means nothing
	sc := scanners.Get().(*format.Scanner)
	*sc = format.Scanner{File: h, Buf: sc.Buf, Reuse: sc.Reuse}
	defer scanners.Put(sc)
	if err := sc.Begin(id); err != nil {
		return c, err
	}
	entries, sealed := sc.ReadFooter(id)
	c.Size, c.Sealed, c.Unchanged = sc.Size, sealed, !sealed && sc.Size == was
	if !sealed && !c.Unchanged {
		entries, err = sc.ReadFrames(id)
	}
	if err != nil || c.Unchanged {
		return c, err
	}
	c.Damage = sc.Hidden
	if sealed {
		sc.Reuse = entries
	}
	c.take(id.Path(), entries)
	return c, nil
}

// take sorts the entries of a segment into blocks and names.
func (c *Contents) take(path string, entries []format.Entry) {
	blocks := 0
	for i := range entries {
		if entries[i].Kind == format.KindBlock {
			blocks++
		}
	}
	c.Blocks, c.Names = make([]Stored, 0, blocks), make([]format.Record, 0, len(entries)-blocks)
	for i := range entries {
		switch e := &entries[i]; e.Kind {
		case format.KindBlock:
			c.Blocks = append(c.Blocks, Stored{Info: e.Info, At: placed(e.As(), path, e.Off)})
		case format.KindName:
			c.Names = append(c.Names, format.Record{ID: e.Info.ID, Name: e.Name})
		case format.KindDrop:
			c.Names = append(c.Names, format.Record{Name: e.Name, Dropped: true})
		case format.KindLayout:
			c.Layouts = append(c.Layouts, e.Record())
		}
	}
}

// Hide withdraws, as Unlink does, a name of which there are older records in
// segments that this store has not read. The withdrawal is kept for as long as
// Hides does not say otherwise.
func (s *Store) Hide(n block.Name) error {
	return s.enqueue(format.Record{Name: n, Dropped: true, Hides: true}, false)
}

// Hides has fn say which of the names that this store has a record but no block
// of have older records, in segments that it has not read, that must not come back: up to the
// Seq that it gives, and below the record itself where that does not withdraw the name, for its
// block may be put again as it was. It keeps its own records of those alone. Until it was
// called, a store with Options.Catalogued keeps all. fn may use the store.
func (s *Store) Hides(fn func([]block.Name) []bool) {
	s.mu.Lock()
	var states []*nameState
	var names []block.Name
	for _, st := range s.names {
		if st.dropped || s.blocks[st.id] == nil && !st.elsewhere {
			n := block.Name{Namespace: st.key.namespace, Key: st.key.key, Seq: st.seq}
			if !st.dropped {
				n.Seq--
			}
			states, names = append(states, st), append(names, n)
		}
	}
	s.mu.Unlock()
	answers := fn(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range states {
		st.hides = answers[i]
	}
	s.judged = true
	if s.emptyLocked() != nil {
		s.reclaimSoonLocked()
	}
}
