package segment

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/lustre/segment/pool"
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
	r := recovery{s: s, newest: map[nameKey]format.Record{}, Round: lease.Round{AdoptOrphans: s.opt.AdoptOrphans && !s.opt.OwnOnly}}
	names, err := r.list(s.opt.Dir)
	if err != nil && !errors.Is(err, errLate) {
		return unavailable("list incarnations", err)
	}
	all := format.Parts(names)
	for _, one := range all {
		if one.Rank == s.opt.Rank || !s.opt.OwnOnly {
			r.loadIncarnation(one)
		}
	}
	err = r.handOver(fn)
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
	s      *Store
	known  map[string]*file // segments that were read before, by path
	ids    []block.ID       // indexed
	newest map[nameKey]format.Record
	files  []*file // that were read, with a user counted: which of them hold nothing is known when all are

	lease.Round
	ownOnly bool // of what is another's nothing is read
	owned   bool // the last incarnation is this run's

	still pool.Patience
}

// loadIncarnation reads the segments of one incarnation that were not read yet.
func (r *recovery) loadIncarnation(one tiers.Part) {
	s := r.s
	dir := filepath.Join(s.opt.Dir, format.Dir(one))
	if s.lease.Wrote(dir) {
		return // what this store writes is in the index
	}
	files, err := r.list(dir)
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
			r.reload(f, own, settle)
			continue
		}
		id, ok := format.ParseName(name)
		if !ok || id.Rank != one.Rank {
			if own {
				r.adoptLeftover(path, one)
			}
			continue
		}
		id.Incarnation = one.Incarnation
		if own && one.Rank == s.opt.Rank && r.addSpilled(path, id) {
			continue
		}
		if sc := r.load(path, id, own, settle); sc != nil && closed && !sc.Footer {
			s.skip(path, format.Errorf("it has no footer, though its rank ended in good order: it was cut or damaged, and of its %d bytes those from %d on are lost: cascade fsck tells more", sc.Size, sc.Whole))
		}
	}
}

// adoptLeftover takes a file that an earlier run of this rank never came to
// give its name for an empty segment, so that it is unlinked: nothing in it was
// acknowledged (docs/format.md §1.1).
func (r *recovery) adoptLeftover(path string, one tiers.Part) {
	s := r.s
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

// load reads one segment into the index. It returns nil when that was left out.
func (r *recovery) load(path string, id format.FileID, own, settle bool) *format.Scanner {
	s := r.s
	sc, entries, err := r.scan(path, id, settle)
	if err != nil {
		s.skip(path, err)
		return nil
	}
	f := newFile(own)
	f.id, f.path, f.done, f.loaded = id, path, true, true
	r.take(f, sc, entries)
	return sc
}

// reload reads a file again that has become this run's, of which more counts
// now, or to which its writer has added something.
func (r *recovery) reload(f *file, own, settle bool) {
	s := r.s
	s.mu.Lock()
	again := (own && !f.own || settle && f.unsettled) && !f.spill.out
	unsealed, was := f.unsealed && !own, f.size
	if !own || f.spill.out {
		f.own = own
	}
	s.mu.Unlock()
	if !again && !(unsealed && r.grown(f.path, was)) {
		return
	}
	sc, entries, err := r.scan(f.path, f.id, settle)
	if err != nil {
		s.skip(f.path, err)
		return
	}
	s.mu.Lock()
	if own && !f.own {
		for _, e := range entries[:min(f.read, len(entries))] {
			if loc := s.blocks[e.Info.ID]; e.Kind == format.KindBlock && loc != nil && loc.file == f {
				r.ids = append(r.ids, e.Info.ID)
			}
		}
	}
	f.own = own
	r.keepLocked(f)
	s.mu.Unlock()
	r.take(f, sc, entries)
}

// keepLocked has a file stay until all that is to be read is.
func (r *recovery) keepLocked(f *file) {
	f.users++
	r.files = append(r.files, f)
}

// take takes in those entries of f that were not taken in before.
func (r *recovery) take(f *file, sc *format.Scanner, entries []format.Entry) {
	s := r.s
	s.indexRead(f, sc, entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[f] = struct{}{}
	r.keepLocked(f)
	f.size = sc.Size
	f.stays = sc.Unsafe != nil || sc.Hidden != nil // for a run in which the rest of it can be had
	f.unsettled, f.unsealed = sc.Unsettled, !sc.Footer
	for _, e := range entries[min(f.read, len(entries)):] {
		f.tables += 2 * int64(format.BlockEntrySize+len(e.Name.Namespace)+len(e.Name.Key)+len(e.Name.Parent))
		if e.Kind == format.KindBlock {
			if s.indexLocked(f, e.Info, e.As(), e.Off) {
				r.ids = append(r.ids, e.Info.ID)
			}
			continue
		}
		if e.Kind == format.KindLayout {
			s.layouts.Note(e.Record())
			continue
		}
		rec := format.Record{ID: e.Info.ID, Name: e.Name, Dropped: e.Kind == format.KindDrop}
		// What another number's run withdrew may lie where nobody has looked
		// for it yet on this rank's behalf: the next round decides (Hides).
		rec.Hides = rec.Dropped && f.id.Rank != s.opt.Rank && s.opt.Catalogued
		if s.noteLocked(f, rec, true) {
			r.newest[nameKey{e.Name.Namespace, e.Name.Key}] = rec
		}
	}
	f.read = max(f.read, len(entries))
}

// handOver calls fn for every block that was read, and for the withdrawn names.
func (r *recovery) handOver(fn func(tiers.Entry) error) error {
	s := r.s
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
	s.noteReadLocked(r.newest)
	for _, f := range r.files {
		f.users-- // who calls this looks afterwards which can go
	}
	r.files = nil
	blocks := make([]tiers.Entry, 0, len(r.ids))
	for _, id := range r.ids {
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, tiers.Entry{Info: loc.info, Names: names[id], OtherOwner: !loc.file.own})
			delete(names, id)
		}
	}
	for id, more := range names { // of blocks that were there before
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, tiers.Entry{Info: loc.info, Names: more, OtherOwner: !loc.file.own})
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
