package segment

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/space"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// index is what a store has in its segments: blocks, the newest record of each name,
// and the files that these lie in.
type index struct {
	guard      *trust.Guard
	rank       uint32
	catalogued bool    // see Options.Catalogued
	emptied    func()  // called with mu held when a file may hold nothing any more
	indexer    Indexer // nil: nothing is spilled
	maxFiles   int     // see Options.MaxFiles
	small      int64   // bytes of a file that may be joined with others

	uses atomic.Uint64 // of handles

	mu       sync.Mutex
	closed   bool
	blocks   map[block.ID]*location
	arriving map[block.ID]struct{}
	names    map[nameKey]*nameState
	files    map[*file]struct{}
	opened   map[*file]struct{}  // those with a handle
	payload  int64               // bytes of the blocks
	stored   int64               // of their payloads
	skipped  []error             // one for each file or directory that recovery left out
	dropped  []block.ID          // see dropFile
	late     map[string]struct{} // paths of what did not answer in time
	mounted  int64               // type of the file system, once it is known
	judged   bool                // Hides was called
}

func newIndex(guard *trust.Guard, rank uint32, catalogued bool, emptied func()) *index {
	return &index{
		guard: guard, rank: rank, catalogued: catalogued, emptied: emptied,
		blocks: map[block.ID]*location{}, arriving: map[block.ID]struct{}{}, names: map[nameKey]*nameState{},
		files: map[*file]struct{}{}, opened: map[*file]struct{}{}, late: map[string]struct{}{},
	}
}

// location is where an indexed block lies. Guarded by index.mu but for what
// never changes.
type location struct {
	file *file
	info block.Info
	as   format.Payload
	off  int64 // of the payload in the file
	pins int
}

// nameState is the newest record of a name and how many records of it lie in
// all files, so that a tombstone is known to be one.
type nameState struct {
	key     nameKey
	file    *file // of the newest record
	id      block.ID
	seq     uint64
	dropped bool
	hides   bool // older records of it lie in segments that were not read
	records int

	elsewhere bool // its block, or its newest record, is in a file that was spilled
}

func (x *index) findLocked(id block.ID) (*location, error) {
	if x.closed {
		return nil, tiers.ErrClosed
	}
	loc := x.blocks[id]
	if loc == nil {
		return nil, fmt.Errorf("lustre: %w: %v", tiers.ErrNotFound, id)
	}
	return loc, nil
}

// indexLocked adds a block, and reports whether it did: the first copy stays, or of two
// in this run's files the one that supersedes the other, as the indexer has it.
func (x *index) indexLocked(f *file, info block.Info, as format.Payload, off int64) bool {
	if old := x.blocks[info.ID]; old != nil {
		if x.indexer == nil || !f.own || !old.file.own || !f.id.Supersedes(old.file.id, x.rank) {
			return false
		}
		x.forgetLocked(old)
	}
	x.blocks[info.ID] = &location{file: f, info: info, as: as, off: off}
	x.payload += info.Size
	x.stored += as.Size
	f.live++
	f.putBytes += as.Footprint()
	f.liveBytes += as.Footprint()
	return true
}

// forgetLocked takes a block out of the index, if it is still the one there.
func (x *index) forgetLocked(loc *location) {
	if x.blocks[loc.info.ID] != loc {
		return
	}
	delete(x.blocks, loc.info.ID)
	x.payload -= loc.info.Size
	x.stored -= loc.as.Size
	loc.file.liveBytes -= loc.as.Footprint()
	if loc.file.live--; loc.file.live == 0 {
		x.emptied()
	}
}

// noteLocked accounts for a record that lies, or may lie, in f, and reports
// whether it is the newest of its name so far: of two copies the one that supersedes the other,
// as the indexer has it. One that does not count leaves another what it was, whose file must stay.
func (x *index) noteLocked(f *file, r format.Record, counts bool) bool {
	k := nameKey{r.Name.Namespace, r.Name.Key}
	st := x.names[k]
	if st == nil {
		st = &nameState{key: k}
		x.names[k] = st
	}
	st.records++
	f.spill.noteSeq(r)
	st.hides = st.hides || r.Hides
	f.recs = append(f.recs, st)
	if r.Name.Seq < st.seq || r.Name.Seq == st.seq && st.file != nil && (!counts || st.dropped && !r.Dropped || st.dropped == r.Dropped && st.file.id.Supersedes(f.id, x.rank)) {
		return false
	}
	st.elsewhere = st.elsewhere && r.Name.Seq == st.seq
	st.file, st.id, st.seq, st.dropped = f, r.ID, r.Name.Seq, r.Dropped
	return true
}

// withdrawRecordsLocked takes the records of a file that is gone off the books, and returns those that
// withdraw older ones of their names.
func (x *index) withdrawRecordsLocked(f *file) (drops []format.Record) {
	here := f.names()
	if f.spill.out {
		for _, st := range x.names {
			if st.file == f { // it is in memory for the sake of older records
				here[st] = 0
			}
		}
	}
	for st, n := range here {
		if st.records -= n; st.file == f {
			// Names are two ticks apart at least: what is put again of this record
			// is newer than its withdrawal.
			drop := format.Record{Dropped: true, Name: block.Name{Namespace: st.key.namespace, Key: st.key.key, Seq: st.seq}}
			if !st.dropped {
				drop.Name.Seq--
			}
			if st.records > 0 || st.dropped || st.hides || x.olderOutLocked(f, st.seq) {
				drops = append(drops, drop)
			}
			st.file, st.seq, st.dropped, st.elsewhere = nil, drop.Name.Seq, true, false
		}
		if st.records == 0 {
			delete(x.names, st.key)
		}
	}
	f.recs = nil
	return drops
}

// emptyLocked finds a segment that can be unlinked.
func (x *index) emptyLocked() *file {
	for f := range x.files {
		if f.own && f.done && f.live == 0 && f.users == 0 && !f.removing && !f.stays && !f.spill.out && !x.neededLocked(f) {
			return f
		}
	}
	return nil
}

// neededLocked reports whether f holds a live name or a tombstone
// (docs/format.md §1.8).
func (x *index) neededLocked(f *file) bool {
	for st, n := range f.names() {
		if x.keepsLocked(f, st, n) {
			return true
		}
	}
	return false
}

// keepsLocked reports whether f, with n records of a name, has its newest one and
// that says something: where a block's name is, or that older records of it in
// other files are void. Those may lie in files that could not be read, or are
// not read by this store, too.
func (x *index) keepsLocked(f *file, st *nameState, n int) bool {
	if st.file != f {
		return false
	}
	unread := len(x.skipped) > 0 || len(x.late) > 0 || x.guard.HasRefused() || st.hides || x.catalogued && !x.judged
	if st.records > n {
		return true
	}
	if st.dropped {
		return unread || x.olderOutLocked(f, st.seq)
	} // the withdrawal of one whose block is gone may be on its way
	return x.blocks[st.id] != nil || st.elsewhere || x.indexer != nil && (st.hides || x.olderOutLocked(f, st.seq))
}

// shapesLocked describes the segments that can be rewritten, and as whole those that
// are spilled, which count for a budget.
func (x *index) shapesLocked() (shapes []space.Shape[*file]) {
	for f := range x.files {
		// A file that is done but in use may have a write under way. One that
		// nothing in it keeps is about to be unlinked.
		idle := f.done && f.users == 0 && !f.removing && !f.stays && f.path != ""
		if f.own && f.spill.out {
			shapes = append(shapes, space.Shape[*file]{File: f, Size: f.size, Live: max(1, f.size)})
		} else if f.own && idle && (f.live > 0 || x.neededLocked(f)) {
			shapes = append(shapes, space.Shape[*file]{File: f, Size: f.size, Live: space.Worth(f.size, f.liveBytes, f.putBytes, f.tables, f.overhead), Blocks: f.live})
		}
	}
	return shapes
}

// dropFile takes every block of f out of the index, for Missing to return, and returns their number.
func (x *index) dropFile(f *file) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, loc := range x.blocks {
		if loc.file == f {
			x.forgetLocked(loc)
			x.dropped, n = append(x.dropped, id), n+1
		}
	}
	return n
}

func (x *index) withdraw(loc *location, why string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forgetLocked(loc)
	return fmt.Errorf("lustre: %w, block withdrawn: %v at %d of %s: %s", tiers.ErrCorrupt, loc.info.ID, loc.off, loc.file.path, why)
}

// written returns the files that this run wrote or owns, by directory and name.
func (x *index) written() map[string]map[string]*file {
	x.mu.Lock()
	var files []*file
	for f := range x.files {
		if (f.own || !f.loaded) && !f.removing && !f.gone {
			files = append(files, f)
		}
	}
	x.mu.Unlock()
	all := map[string]map[string]*file{}
	for _, f := range files {
		path := f.where()
		if path == "" { // it is being made
			continue
		}
		dir := filepath.Dir(path)
		if all[dir] == nil {
			all[dir] = map[string]*file{}
		}
		all[dir][filepath.Base(path)] = f
	}
	return all
}

// noteLate notes whether a path has not answered.
func (x *index) noteLate(path string, late bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if late {
		x.late[path] = struct{}{}
	} else {
		delete(x.late, path)
	}
}

// Late returns how many files and directories were not read because they did not
// answer, and one of them. Their blocks are misses until they are adopted.
func (x *index) Late() (n int, one string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for path := range x.late {
		if one == "" || path < one {
			one = path
		}
	}
	return len(x.late), one
}

// skip lists what is left out, once: adoption comes to it again and again. What
// strangers left is counted.
func (x *index) skip(path string, err error) {
	if x.guard.Note(path, err) || errors.Is(err, errLate) {
		return
	}
	err = fmt.Errorf("%s: %w", path, err)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.ContainsFunc(x.skipped, func(old error) bool { return old.Error() == err.Error() }) {
		x.skipped = append(x.skipped, err)
	}
}

// Skipped returns one error for each file or directory that Recover left out,
// whole or in part.
func (x *index) Skipped() []error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]error(nil), x.skipped...)
}

// Older returns which of the records, of segments that this store has not read,
// are void for what it has itself of their names, and keeps that.
func (x *index) Older(records []format.Record) []bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	older := make([]bool, len(records))
	for i, r := range records {
		st := x.names[nameKey{r.Name.Namespace, r.Name.Key}]
		if st == nil || st.seq < r.Name.Seq || st.seq == r.Name.Seq && !st.dropped && !r.Dropped {
			continue // of two records of one put neither is void
		}
		older[i] = true
		st.hides = true
	}
	return older
}

func (x *index) unuseLocked(f *file) {
	f.users--
	if f.users == 0 && f.done && f.live == 0 {
		x.emptied()
	}
}

// isOpen notes that a file has a handle.
func (x *index) isOpen(f *file) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.opened[f] = struct{}{}
}

// openFiles is how many files of the index are open.
func (x *index) openFiles() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.opened)
}

// takeIdle takes the handles of such a file from it.
func (x *index) takeIdle() []vfs.File {
	x.mu.Lock()
	defer x.mu.Unlock()
	busy := map[*file]bool{}
	for {
		var oldest *file
		for f := range x.opened {
			if f.done && !f.removing && !busy[f] && f.reads.Load() == 0 && (oldest == nil || f.used.Load() < oldest.used.Load()) {
				oldest = f
			}
		}
		if oldest == nil {
			return nil
		}
		if handles, ok := oldest.giveUp(); ok {
			delete(x.opened, oldest)
			return handles
		}
		busy[oldest] = true
	}
}
