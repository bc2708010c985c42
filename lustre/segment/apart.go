package segment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"cascadekv/internal/block"
)

// Stored is a block of a segment as its footer or frame has it.
type Stored struct {
	Info  block.Info
	Place Place
}

// Recorded is a NAME or a DROP.
type Recorded struct {
	ID      block.ID // of the block; zero for a DROP
	Name    block.Name
	Dropped bool // only Namespace, Key and Seq of Name count
}

// Contents is what counts of one segment, in the order in which it was written.
type Contents struct {
	Size      int64 // of the file
	Sealed    bool  // nothing will be added
	Unchanged bool  // it is neither sealed nor of another size than it was: it was not read
	Blocks    []Stored
	Names     []Recorded
	Damage    error // what was left out, and why; nil for nothing
}

// Path is the name of a segment as Place has it.
func Path(one Incarnation, number uint64) string {
	id := fileID{rank: one.Rank, incarnation: one.Number, number: number}
	return filepath.Join(one.String(), segmentName(id))
}

// Listing is what a look at an incarnation's directory tells.
type Listing struct {
	Numbers []uint64 // of its segments, in no particular order
	Ended   bool     // its owner can do nothing any more: see Inherit
}

// Files lists an incarnation's segments, none when its directory is gone. Errors:
// ErrUnavailable, of which some are those of IsRefused, ErrClosed.
func (s *Store) Files(ctx context.Context, one Incarnation) (Listing, error) {
	var l Listing
	err := s.readJob(ctx, "list of "+one.String(), func() error {
		names, err := s.fs.ReadDir(filepath.Join(s.opt.Dir, one.String()))
		if errors.Is(err, os.ErrNotExist) {
			l.Ended = true
			return nil
		}
		if err != nil {
			s.guard.note(filepath.Join(s.opt.Dir, one.String()), err)
			return unavailable("list "+one.String(), err)
		}
		for _, name := range names {
			if id, ok := parseSegment(name); ok && id.rank == one.Rank {
				l.Numbers = append(l.Numbers, id.number)
			}
		}
		l.Ended = s.hasEnded(one, tokens(names))
		return nil
	})
	if err != nil {
		return Listing{}, err // what runs on may still append
	}
	return l, nil
}

// hasEnded tells whether an incarnation with these tokens could be taken over. A
// token may be missing for being renamed meanwhile, which is a reason to wait.
func (s *Store) hasEnded(one Incarnation, all []Token) bool {
	if len(all) == 0 {
		return s.tenure.later(one.Number)
	}
	var r recovery
	for _, t := range all {
		if s.isMine(t) || !s.ended(one, t, &r) {
			return false
		}
	}
	return true
}

// Contents reads what counts of a segment of another rank, which need not be
// sealed, and leaves this store's index as it is. One that is not sealed and as
// large as the caller says it was is not read again. Errors: ErrNotFound (there
// is no such file any more), ErrBadFormat, those of IsRefused, ErrUnavailable,
// ErrClosed.
func (s *Store) Contents(ctx context.Context, one Incarnation, number uint64, was int64) (Contents, error) {
	path := Path(one, number)
	var c Contents
	err := s.readJob(ctx, "read of what is in "+path, func() (err error) {
		c, err = s.contents(path, fileID{rank: one.Rank, incarnation: one.Number, number: number}, was)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("%w: %s: %w", ErrNotFound, path, err)
		case errors.Is(err, ErrBadFormat), s.guard.note(filepath.Join(s.opt.Dir, path), err):
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
var scanners = sync.Pool{New: func() any { return new(scanner) }}

func (s *Store) contents(path string, id fileID, was int64) (c Contents, err error) {
	h, err := s.fs.Open(filepath.Join(s.opt.Dir, path))
	if err != nil {
		return c, err
	}
	defer h.Close() // only read: its error tells nothing
	sc := scanners.Get().(*scanner)
	*sc = scanner{h: h, buf: sc.buf, room: sc.room}
	defer scanners.Put(sc)
	if err := sc.begin(id); err != nil {
		return c, err
	}
	entries, sealed := sc.sealed(id)
	c.Size, c.Sealed, c.Unchanged = sc.size, sealed, !sealed && sc.size == was
	if !sealed && !c.Unchanged {
		entries, err = sc.scan(id)
	}
	if err != nil || c.Unchanged {
		return c, err
	}
	c.Damage = sc.hidden
	if sealed {
		sc.room = entries
	}
	c.take(path, entries)
	return c, nil
}

// take sorts the entries of a segment into blocks and names.
func (c *Contents) take(path string, entries []entry) {
	blocks := 0
	for i := range entries {
		if entries[i].kind == kindBlock {
			blocks++
		}
	}
	c.Blocks, c.Names = make([]Stored, 0, blocks), make([]Recorded, 0, len(entries)-blocks)
	for i := range entries {
		switch e := &entries[i]; e.kind {
		case kindBlock:
			c.Blocks = append(c.Blocks, Stored{Info: e.info, Place: e.as().at(path, e.off)})
		case kindName:
			c.Names = append(c.Names, Recorded{ID: e.info.ID, Name: e.name})
		case kindDrop:
			c.Names = append(c.Names, Recorded{Name: e.name, Dropped: true})
		}
	}
}

// Hide withdraws, as Unlink does, a name of which there are older records in
// segments that this store has not read. The withdrawal is kept for as long as
// Hides does not say otherwise.
func (s *Store) Hide(n block.Name) error {
	return s.enqueue(record{name: n, dropped: true, hides: true}, false)
}

// Hides has fn say which of the names that this store has a record but no block
// of have records, up to their Seq, in segments that it has not read, and keeps
// its own records of those alone. Until it was called, a store with
// Options.Apart keeps all. fn may use the store.
func (s *Store) Hides(fn func([]block.Name) []bool) {
	s.mu.Lock()
	var states []*nameState
	var names []block.Name
	for _, st := range s.names {
		if st.dropped || s.blocks[st.id] == nil {
			states = append(states, st)
			names = append(names, block.Name{Namespace: st.key.namespace, Key: st.key.key, Seq: st.seq})
		}
	}
	s.mu.Unlock()
	answers := fn(names)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, st := range states {
		st.hides = answers[i]
		if st.hides && !st.dropped && st.seq == names[i].Seq {
			// A NAME whose block is gone is no reason to keep it.
			s.waiting = append(s.waiting, record{name: names[i], dropped: true, hides: true})
		}
	}
	s.judged = true
	if s.emptyLocked() != nil {
		s.reclaimSoonLocked()
	}
}

// Older returns which of the records, of segments that this store has not read,
// are void for what it knows itself of their names, and keeps that.
func (s *Store) Older(records []Recorded) []bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	older := make([]bool, len(records))
	for i, r := range records {
		st := s.names[nameKey{r.Name.Namespace, r.Name.Key}]
		if st == nil || st.seq < r.Name.Seq {
			continue
		}
		older[i] = true
		st.hides = true
	}
	return older
}
