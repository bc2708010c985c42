package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// dropBatch is how many withdrawn names one Found holds at most.
const dropBatch = 1024

// Recover reads the segments of every rank and incarnation under the
// directory, or with Options.OwnOnly those of this rank, fills the index and
// calls fn once for each block; then with the withdrawn names. What cannot be
// read, or only in part, is left in place and listed by Skipped. What does not
// answer is not waited for: Late counts it, and Adopt takes it in. It must be
// called at most once, before any Put. An error from fn ends it and is returned;
// other errors match ErrUnavailable.
func (s *Store) Recover(fn func(tiers.Entry) error) error {
	r := recovery{newest: map[nameKey]format.Record{}, Round: lease.Round{Inherits: s.opt.Inherits && !s.opt.OwnOnly}}
	names, err := s.list(s.opt.Dir, &r)
	if err != nil && !errors.Is(err, errLate) {
		return unavailable("list incarnations", err)
	}
	all := format.Parts(names)
	for _, one := range all {
		if one.Rank == s.opt.Rank || !s.opt.OwnOnly {
			s.loadIncarnation(one, &r)
		}
	}
	err = s.handOver(&r, fn)
	s.reclaimSoon()
	return err
}

// reclaimSoon starts unlinking what was read and holds nothing.
func (s *Store) reclaimSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.emptyLocked() != nil {
		s.reclaimSoonLocked()
	}
}

// recovery is what was read, and not handed over yet.
type recovery struct {
	known  map[string]*file // segments that were read before, by path
	ids    []block.ID       // indexed
	newest map[nameKey]format.Record

	lease.Round
	ownOnly bool // of what is another's nothing is read
	owned   bool // the last incarnation is this run's

	still patience
}

// loadIncarnation reads the segments of one incarnation that were not read yet.
func (s *Store) loadIncarnation(one tiers.Part, r *recovery) {
	dir := filepath.Join(s.opt.Dir, format.Dir(one))
	if s.lease.Wrote(dir) {
		return // what this store writes is in the index
	}
	files, err := s.list(dir, r)
	if r.owned = r.ownOnly && errors.Is(err, os.ErrNotExist); r.owned {
		return // there is nothing that anybody could own
	}
	if err != nil {
		s.skip(dir, err)
		return
	}
	closed := slices.ContainsFunc(lease.Tokens(files), func(t lease.Token) bool { return t.Closed })
	own, files, err := s.lease.Owns(one, files, &r.Round)
	if err != nil {
		s.skip(dir, err)
	}
	if r.owned = own; r.ownOnly && !own {
		return
	}
	settle := own || !s.lease.MayWriteHere(files)
	for _, name := range files {
		path := filepath.Join(dir, name)
		if f := r.known[path]; f != nil {
			s.reload(f, own, settle, r)
			continue
		}
		id, ok := format.ParseName(name)
		if !ok || id.Rank != one.Rank {
			if own {
				s.adoptLeftover(path, one)
			}
			continue
		}
		id.Incarnation = one.Incarnation
		if sc := s.load(path, id, own, settle, r); sc != nil && closed && !sc.Footer {
			s.skip(path, format.Errorf("it has no footer, though its rank ended in good order: it was cut or damaged, and of its %d bytes those from %d on are lost: cascade fsck tells more", sc.Size, sc.Whole))
		}
	}
}

// paths are those of the segments that were read before.
func (s *Store) paths() map[string]*file {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]*file, len(s.files))
	for f := range s.files {
		if f.loaded {
			all[f.path] = f
		}
	}
	return all
}

// adoptLeftover takes a file that an earlier run of this rank never came to
// give its name for an empty segment, so that it is unlinked: nothing in it was
// acknowledged (docs/format.md §1.1).
func (s *Store) adoptLeftover(path string, one tiers.Part) {
	name, temporary := strings.CutSuffix(filepath.Base(path), ".tmp")
	id, ok := format.ParseName(name)
	if !temporary || !ok || id.Rank != one.Rank {
		return
	}
	f := newFile(true)
	f.id, f.path, f.done, f.loaded = id, path, true, true
	f.id.Incarnation = one.Incarnation
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[f] = struct{}{}
}

// skip lists what is left out, once: adoption comes to it again and again. What
// strangers left is counted.
func (s *Store) skip(path string, err error) {
	if s.guard.Note(path, err) || errors.Is(err, errLate) {
		return
	}
	err = fmt.Errorf("%s: %w", path, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.skipped, func(old error) bool { return old.Error() == err.Error() }) {
		s.skipped = append(s.skipped, err)
	}
}

// load reads one segment into the index. It returns nil when that was left out.
func (s *Store) load(path string, id format.FileID, own, settle bool, r *recovery) *format.Scanner {
	sc, entries, err := s.scan(path, id, settle, r)
	if err != nil {
		s.skip(path, err)
		return nil
	}
	f := newFile(own)
	f.id, f.path, f.done, f.loaded = id, path, true, true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[f] = struct{}{}
	s.takeLocked(f, sc, entries, r)
	return sc
}

// reload reads a file again that has become this run's, of which more counts
// now, or to which its writer has added something.
func (s *Store) reload(f *file, own, settle bool, r *recovery) {
	s.mu.Lock()
	again := own && !f.own || settle && f.unsettled
	unsealed, was := f.unsealed && !own, f.size
	if !own {
		f.own = false
	}
	s.mu.Unlock()
	if !again && !(unsealed && s.grown(f.path, was, r)) {
		return
	}
	sc, entries, err := s.scan(f.path, f.id, settle, r)
	if err != nil {
		s.skip(f.path, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if own && !f.own {
		for _, e := range entries[:min(f.read, len(entries))] {
			if loc := s.blocks[e.Info.ID]; e.Kind == format.KindBlock && loc != nil && loc.file == f {
				r.ids = append(r.ids, e.Info.ID)
			}
		}
	}
	f.own = own
	s.takeLocked(f, sc, entries, r)
}

// takeLocked takes in those entries of f that were not taken in before.
func (s *Store) takeLocked(f *file, sc *format.Scanner, entries []format.Entry, r *recovery) {
	f.size = sc.Size
	f.stays = sc.Unsafe != nil || sc.Hidden != nil // for a run in which the rest of it can be had
	f.unsettled, f.unsealed = sc.Unsettled, !sc.Footer
	for _, e := range entries[min(f.read, len(entries)):] {
		if e.Kind == format.KindBlock {
			if s.indexLocked(f, e.Info, e.As(), e.Off) {
				r.ids = append(r.ids, e.Info.ID)
			}
			continue
		}
		rec := format.Record{ID: e.Info.ID, Name: e.Name, Dropped: e.Kind == format.KindDrop}
		// What another number's run withdrew may lie where nobody has looked
		// for it yet on this rank's behalf: the next round tells (Hides).
		rec.Hides = rec.Dropped && f.id.Rank != s.opt.Rank && s.opt.Apart
		if s.noteLocked(f, rec, true) {
			r.newest[nameKey{e.Name.Namespace, e.Name.Key}] = rec
		}
	}
	f.read = max(f.read, len(entries))
}

// handOver calls fn for every block that was read, and for the withdrawn names.
func (s *Store) handOver(r *recovery, fn func(tiers.Entry) error) error {
	names := map[block.ID][]block.Name{}
	var dropped []block.Name
	for _, rec := range r.newest {
		if rec.Dropped {
			dropped = append(dropped, rec.Name)
		} else {
			names[rec.ID] = append(names[rec.ID], rec.Name)
		}
	}
	s.mu.Lock()
	blocks := make([]tiers.Entry, 0, len(r.ids))
	for _, id := range r.ids {
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, tiers.Entry{Info: loc.info, Names: names[id], Foreign: !loc.file.own})
			delete(names, id)
		}
	}
	for id, more := range names { // of blocks that were there before
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, tiers.Entry{Info: loc.info, Names: more, Foreign: !loc.file.own})
		}
	}
	s.mu.Unlock()
	for _, found := range blocks {
		if err := fn(found); err != nil {
			return err
		}
	}
	for len(dropped) > 0 {
		n := min(len(dropped), dropBatch)
		if err := fn(tiers.Entry{Dropped: dropped[:n]}); err != nil {
			return err
		}
		dropped = dropped[n:]
	}
	return nil
}
