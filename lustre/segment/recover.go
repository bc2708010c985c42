package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
)

// Found is what Recover hands over: a block with its names, or, with Info.ID
// zero, names that were withdrawn.
type Found struct {
	Info    block.Info
	Names   []block.Name
	Dropped []block.Name // Namespace, Key and Seq only
	Foreign bool         // it lies in a segment that another run owns, which that one unlinks
}

// dropBatch is how many withdrawn names one Found holds at most.
const dropBatch = 1024

// Recover reads the segments of every rank and incarnation under the
// directory, or with Options.OwnOnly those of this rank, fills the index and
// calls fn once for each block; then with the withdrawn names. What cannot be
// read, or only in part, is left in place and listed by Skipped. What does not
// answer is not waited for: Late counts it, and Adopt takes it in. It must be
// called at most once, before any Put. An error from fn ends it and is returned;
// other errors match ErrUnavailable.
func (s *Store) Recover(fn func(Found) error) error {
	r := recovery{newest: map[nameKey]record{}, inherits: s.opt.Inherits && !s.opt.OwnOnly}
	names, err := s.list(s.opt.Dir, &r)
	if err != nil && !errors.Is(err, errLate) {
		return unavailable("list incarnations", err)
	}
	all := incarnationsOf(names)
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
	ended  map[owner]bool   // whether these runs have ended
	ids    []block.ID       // indexed
	newest map[nameKey]record

	inherits bool // runs of other rank numbers that have ended are taken over too
	ownOnly  bool // of what is another's nothing is read
	owned    bool // the last incarnation is this run's

	still patience
}

// owner is a run as its tokens name it.
type owner struct {
	number  uint64
	process Process
}

// loadIncarnation reads the segments of one incarnation that were not read yet.
func (s *Store) loadIncarnation(one Incarnation, r *recovery) {
	dir := filepath.Join(s.opt.Dir, one.String())
	if s.tenure.wrote(dir) {
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
	closed := slices.ContainsFunc(tokens(files), func(t Token) bool { return t.Closed })
	own, files := s.owns(one, files, r)
	if r.owned = own; r.ownOnly && !own {
		return
	}
	settle := own || !s.mayWriteHere(files)
	for _, name := range files {
		path := filepath.Join(dir, name)
		if f := r.known[path]; f != nil {
			s.reload(f, own, settle, r)
			continue
		}
		id, ok := parseSegment(name)
		if !ok || id.rank != one.Rank {
			if own {
				s.adoptLeftover(path, one)
			}
			continue
		}
		id.incarnation = one.Number
		if sc := s.load(path, id, own, settle, r); sc != nil && closed && !sc.footer {
			s.skip(path, badFormat("it has no footer, though its rank ended in good order: it was cut or damaged, and of its %d bytes those from %d on are lost: cascade fsck tells more", sc.size, sc.whole))
		}
	}
}

// mayWriteHere tells whether a process of this node may be writing to the
// directory in which these names lie. Nobody else must sync its files: only the
// first fsync of a node is told that writes were lost (docs/format.md §1.7).
func (s *Store) mayWriteHere(names []string) bool {
	return slices.ContainsFunc(tokens(names), func(t Token) bool {
		return !t.Closed && !t.Process.Gone() && t.Process.maybeNear(s.opt.Process)
	})
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
func (s *Store) adoptLeftover(path string, one Incarnation) {
	name, temporary := strings.CutSuffix(filepath.Base(path), ".tmp")
	id, ok := parseSegment(name)
	if !temporary || !ok || id.rank != one.Rank {
		return
	}
	f := newFile(true)
	f.id, f.path, f.done, f.loaded = id, path, true, true
	f.id.incarnation = one.Number
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[f] = struct{}{}
}

func parseSegment(name string) (id fileID, ok bool) {
	rest, isSegment := strings.CutSuffix(strings.TrimPrefix(name, "agg_rank"), ".bin")
	rank, number, found := strings.Cut(rest, "_")
	r, err1 := strconv.ParseUint(rank, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 64)
	id = fileID{rank: uint32(r), number: n}
	return id, isSegment && found && err1 == nil && err2 == nil && name == segmentName(id)
}

// skip lists what is left out, once: adoption comes to it again and again. What
// strangers left is counted.
func (s *Store) skip(path string, err error) {
	if s.guard.note(path, err) || errors.Is(err, errLate) {
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
func (s *Store) load(path string, id fileID, own, settle bool, r *recovery) *scanner {
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
			if loc := s.blocks[e.info.ID]; e.kind == kindBlock && loc != nil && loc.file == f {
				r.ids = append(r.ids, e.info.ID)
			}
		}
	}
	f.own = own
	s.takeLocked(f, sc, entries, r)
}

// takeLocked takes in those entries of f that were not taken in before.
func (s *Store) takeLocked(f *file, sc *scanner, entries []entry, r *recovery) {
	f.size = sc.size
	f.stays = sc.unsafe != nil || sc.hidden != nil // for a run in which the rest of it can be had
	f.unsettled, f.unsealed = sc.unsettled, !sc.footer
	for _, e := range entries[min(f.read, len(entries)):] {
		if e.kind == kindBlock {
			if s.indexLocked(f, e.info, e.as(), e.off) {
				r.ids = append(r.ids, e.info.ID)
			}
			continue
		}
		rec := record{id: e.info.ID, name: e.name, dropped: e.kind == kindDrop}
		// What another number's run withdrew may lie where nobody has looked
		// for it yet on this rank's behalf: the next round tells (Hides).
		rec.hides = rec.dropped && f.id.rank != s.opt.Rank && s.opt.Apart
		if s.noteLocked(f, rec, true) {
			r.newest[nameKey{e.name.Namespace, e.name.Key}] = rec
		}
	}
	f.read = max(f.read, len(entries))
}

// handOver calls fn for every block that was read, and for the withdrawn names.
func (s *Store) handOver(r *recovery, fn func(Found) error) error {
	names := map[block.ID][]block.Name{}
	var dropped []block.Name
	for _, rec := range r.newest {
		if rec.dropped {
			dropped = append(dropped, rec.name)
		} else {
			names[rec.id] = append(names[rec.id], rec.name)
		}
	}
	s.mu.Lock()
	blocks := make([]Found, 0, len(r.ids))
	for _, id := range r.ids {
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, Found{Info: loc.info, Names: names[id], Foreign: !loc.file.own})
			delete(names, id)
		}
	}
	for id, more := range names { // of blocks that were there before
		if loc := s.blocks[id]; loc != nil {
			blocks = append(blocks, Found{Info: loc.info, Names: more, Foreign: !loc.file.own})
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
		if err := fn(Found{Dropped: dropped[:n]}); err != nil {
			return err
		}
		dropped = dropped[n:]
	}
	return nil
}

// scanner reads the entries of one segment.
type scanner struct {
	h       vfs.File
	size    int64
	buf     []byte
	room    []entry       // memory for those of a footer
	durable bool          // leave out what may not be durable
	settle  bool          // make it so first
	steps   *atomic.Int64 // counts reads as they end; nil: nobody asks

	footer    bool  // there is a valid one
	whole     int64 // without: bytes up to the end of the last whole frame
	unsettled bool  // frames were left out for want of settle
	unsafe    error // settling failed: frames were left out
	hidden    error // frames were left out that were durable once
}

// entries returns what counts of a segment (docs/format.md §1.7), payload
// offsets from the start of the file.
func (sc *scanner) entries(id fileID) ([]entry, error) {
	if err := sc.begin(id); err != nil {
		return nil, err
	}
	entries, ok := sc.sealed(id)
	if sc.footer = ok; ok {
		return entries, nil
	}
	return sc.scan(id)
}

// begin finds out how large the file is, and that it is what its name says.
func (sc *scanner) begin(id fileID) error {
	var err error
	if sc.size, err = sc.h.Size(); err != nil {
		return err
	}
	page, err := sc.read(0, pageSize)
	if err != nil {
		return err
	}
	head, err := decodeHeader(page)
	if err == nil && head.fileID != id {
		err = badFormat("header says rank %d, incarnation %016x, file %d", head.rank, head.incarnation, head.number)
	}
	return err
}

// read returns n bytes at off in the scanner's buffer. A file that is shorter
// is badly formed.
func (sc *scanner) read(off, n int64) ([]byte, error) {
	if off < 0 || n > sc.size-off {
		return nil, badFormat("%d bytes at %d of a file of %d", n, off, sc.size)
	}
	if int64(cap(sc.buf)) < n {
		sc.buf = make([]byte, n)
	}
	_, err := sc.h.Pread(sc.buf[:n], off)
	if sc.steps != nil {
		sc.steps.Add(1)
	}
	return sc.buf[:n], err
}

// sealed reads the footer; false when there is none that is valid.
func (sc *scanner) sealed(id fileID) ([]entry, bool) {
	t, err := sc.read(sc.size-trailerSize, trailerSize)
	if err != nil {
		return nil, false
	}
	off, size, ok := decodeTrailer(t, sc.size)
	if !ok {
		return nil, false
	}
	p, err := sc.read(off, size)
	if err != nil {
		return nil, false
	}
	entries, err := decodeFooter(sc.room[:0], p, id, off)
	return entries, err == nil
}

// scanned is a frame of an unsealed segment.
type scanned struct {
	entries []entry
	synced  uint64
}

// scan reads frames up to the first bad one and then checks the payloads that
// may never have been durable. An error of the file system is returned: what
// it hides must not be taken for absent.
//
// What a process left in the page cache when it was killed can be read, but a
// power cut would still take it, and meanwhile it would count as stored. So it
// is synced once it has been read, which brings it out of the cache of another
// node. What cannot be is left out.
func (sc *scanner) scan(id fileID) ([]entry, error) {
	var frames []scanned
	for off := int64(pageSize); ; {
		sc.whole = off
		fr, total, err := sc.frame(id, off, uint64(len(frames)))
		if errors.Is(err, ErrBadFormat) {
			if err := sc.lookBehind(id, off, uint64(len(frames))); err != nil {
				return nil, err
			}
			break
		}
		if err != nil {
			return nil, err
		}
		frames = append(frames, fr)
		off += total
	}
	var out []entry
	durable := 0 // of those
	for i, fr := range frames {
		synced := uint64(i) < frames[len(frames)-1].synced
		if !synced {
			ok, err := sc.intact(fr.entries)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
		}
		out = append(out, fr.entries...)
		if synced {
			durable = len(out)
		}
	}
	if !sc.durable || durable == len(out) {
		return out, nil
	}
	if sc.unsettled = !sc.settle; sc.settle {
		sc.unsafe = sc.h.Sync()
	}
	if sc.unsettled || sc.unsafe != nil {
		out = out[:durable]
	}
	return out, nil
}

// lookBehind looks for a frame behind the bad one at off that says that the bad
// one was durable. Then it is damaged, and not what a crash left of a write.
func (sc *scanner) lookBehind(id fileID, off int64, number uint64) error {
	for at := off + pageSize; at+pageSize <= sc.size; at += pageSize {
		p, err := sc.read(at, pageSize)
		if err != nil {
			return err
		}
		h, err := decodeFrameHeader(p)
		if err != nil || h.number <= number || h.synced <= number {
			continue
		}
		_, _, err = sc.frame(id, at, h.number)
		if err == nil {
			sc.hidden = badFormat("frame %d at %d is damaged; it and what lies behind it are left out: cascade fsck can repair that", number, off)
			return nil
		}
		if !errors.Is(err, ErrBadFormat) {
			return err
		}
	}
	return nil
}

// frame reads the frame at off; an error matches ErrBadFormat when there is
// none.
func (sc *scanner) frame(id fileID, off int64, number uint64) (scanned, int64, error) {
	p, err := sc.read(off, pageSize)
	if err != nil {
		return scanned{}, 0, err
	}
	h, err := decodeFrameHeader(p)
	if err != nil {
		return scanned{}, 0, err
	}
	if h.incarnation != id.incarnation || h.fileID.number != id.number || h.number != number || h.total > sc.size-off {
		return scanned{}, 0, badFormat("frame %d of file %d, %d bytes", h.number, h.fileID.number, h.total)
	}
	if h.headLen > pageSize {
		if p, err = sc.read(off, h.headLen); err != nil {
			return scanned{}, 0, err
		}
	}
	_, entries, err := decodeFrame(p)
	if err != nil {
		return scanned{}, 0, err
	}
	for i := range entries {
		entries[i].off += off
	}
	return scanned{entries, h.synced}, h.total, nil
}

// intact verifies the payloads of entries.
func (sc *scanner) intact(entries []entry) (bool, error) {
	const piece = 1 << 20
	for _, e := range entries {
		if e.kind != kindBlock {
			continue
		}
		var crc uint32
		for done := int64(0); done < e.stored; done += piece {
			p, err := sc.read(e.off+done, min(piece, e.stored-done))
			if err != nil && !errors.Is(err, ErrBadFormat) {
				return false, err
			}
			crc = block.ExtendCRC(crc, p)
		}
		if crc != e.storedCRC {
			return false, nil
		}
	}
	return true, nil
}
