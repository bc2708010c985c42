package segment

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// Indexer has the entries of this store's own files besides the store itself, so that
// those of files that are seldom used need not be in memory. All methods are called
// without locks, and may be called at the same time.
type Indexer interface {
	// Wrote is given what one frame has, once it is durable and before its writer
	// hears of it. c.Size is how far the file is written, and c.Sealed is false. The
	// frames of a file may come in any order, and again. An error means that the
	// indexer does not have it: the file is never spilled.
	Wrote(ctx context.Context, p tiers.Part, number uint64, c Contents) error

	// Has reports whether the indexer has all entries of a sealed file, and what it holds.
	Has(p tiers.Part, number uint64) (Spilled, bool)

	// Complete records that a file is sealed at so many bytes and that all of its
	// entries were given to Wrote, so that Has is true of it. It may be called again.
	// here are blocks in it that count whatever other files have them: of these the store
	// has evicted them. nil: not asked yet; an error means then that the next start is to read
	// the file.
	Complete(ctx context.Context, p tiers.Part, number uint64, size int64, here []Stored) error

	// Gone is called when a file is unlinked, or was removed by somebody.
	Gone(p tiers.Part, number uint64)
}

// Spilled is a file whose entries only the indexer has.
type Spilled struct {
	Part    tiers.Part
	Number  uint64
	Size    int64
	Blocks  int
	Payload int64 // bytes of the blocks
	Crowds  bool  // there are too many files, and this one is small: set by SpilledFiles
	Earlier bool  // an earlier run wrote it: likewise
}

const (
	wroteWait   = 5 * time.Second // for the entries of one frame
	recoverWait = time.Minute     // for those of a file

	noSeq = math.MaxUint64 // the least seq of no records
)

// spillState is what an Indexer is to a file. Guarded by index.mu.
type spillState struct {
	taken    uint64  // frames that it has; 1: all of a file that was read
	frames   uint64  // all that there are, likewise; 0 while there may be more
	leastSeq uint64  // of the names put in the file; 0: not known
	refused  int     // how often the caller of Spill wanted it to stay
	out      bool    // only the indexer has the entries
	reloaded bool    // they were brought back
	has      Spilled // while out
	stored   int64   // likewise: bytes of the payloads
}

// Worth is what a record of a name is worth that is read back.
type Worth uint8

const (
	Outdated Worth = iota // nothing: there is a newer one
	Counting              // it is the newest of its name
	Hiding                // older ones of its name must not come back: it withdraws them, or has ended
)

// SetIndexer makes i the indexer of this store, before Recover and any Put.
func (x *index) SetIndexer(i Indexer) { x.indexer = i }

// contents is what a frame of items holds.
func (fr written) contents(path string, items []format.Block) Contents {
	c := Contents{Size: fr.end}
	for i, it := range items {
		c.Blocks = append(c.Blocks, Stored{Info: it.Info, At: placed(it.As, path, fr.offs[i])})
		for _, n := range it.Names {
			c.Names = append(c.Names, format.Record{ID: it.Info.ID, Name: n})
		}
	}
	for _, r := range fr.records {
		if r.Layout != nil {
			c.Layouts = append(c.Layouts, r)
		} else {
			c.Names = append(c.Names, r)
		}
	}
	return c
}

// indexFrame gives the indexer a durable frame of f, which the caller uses. Errors are its own.
func (x *index) indexFrame(ctx context.Context, f *file, items []format.Block, fr written) error {
	if x.indexer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wroteWait)
	defer cancel()
	err := x.indexer.Wrote(ctx, f.id.Part(), f.id.Number, fr.contents(f.id.Path(), items))
	if err == nil {
		x.mark(f, func() { f.spill.taken++ })
	}
	return err
}

// noteSealed notes that f, which the caller has sealed or tried to, gets no more frames.
func (x *index) noteSealed(f *file) {
	x.mark(f, func() {
		if f.size = f.w.Off; f.sealed {
			f.spill.frames = f.w.Frames
		}
	})
}

// mark makes a change to f.spill and, if the indexer has all of f then, has it record that, so
// that the next start does not read it. What fails is tried again when the file is spilled.
func (x *index) mark(f *file, change func()) {
	x.mu.Lock()
	change()
	whole, size := f.own && f.spill.isWhole(), f.size
	x.mu.Unlock()
	if whole {
		ctx, cancel := context.WithTimeout(context.Background(), wroteWait)
		defer cancel()
		_ = x.indexer.Complete(ctx, f.id.Part(), f.id.Number, size, nil)
	}
}

// noteSeq notes that a record is in the file. A withdrawal is nothing that must be hidden.
func (s *spillState) noteSeq(r format.Record) {
	if !r.Dropped {
		s.leastSeq = min(s.leastSeq, r.Name.Seq)
	}
}

// isWhole reports whether the indexer has all of a file.
func (s *spillState) isWhole() bool { return s.frames > 0 && s.taken == s.frames }

// indexRead gives the indexer the entries of a file of this run's that was read: after a crash it
// may have lost the last that it was given. One without a footer is not spilled.
func (x *index) indexRead(f *file, sc *format.Scanner, entries []format.Entry) {
	x.mu.Lock()
	own := f.own
	x.mu.Unlock()
	if x.indexer == nil || !own {
		return
	}
	c := Contents{Size: sc.Size}
	c.take(f.id.Path(), entries)
	ctx, cancel := context.WithTimeout(context.Background(), recoverWait)
	defer cancel()
	if x.indexer.Wrote(ctx, f.id.Part(), f.id.Number, c) == nil && sc.Footer {
		x.mark(f, func() { f.spill.taken, f.spill.frames, f.size = 1, 1, sc.Size })
	}
}

// indexGone informs the indexer that f, which was at path, is gone.
func (x *index) indexGone(f *file, path string) {
	if x.indexer != nil && filepath.Base(path) == f.id.Name() {
		x.indexer.Gone(f.id.Part(), f.id.Number)
	}
}

// addSpilled takes in a file of this run's whose entries the indexer has, without
// reading it, and reports whether there is one of that name, of the size that it had.
func (r *recovery) addSpilled(path string, id format.FileID) bool {
	x := r.s.index
	if x.indexer == nil {
		return false
	}
	has, ok := x.indexer.Has(id.Part(), id.Number)
	if ok && r.grown(path, has.Size) { // somebody has cut it: what is left is read
		x.indexer.Gone(id.Part(), id.Number)
		return false
	}
	if !ok {
		return false
	}
	f := newFile(true)
	f.id, f.path, f.done, f.loaded, f.size = id, path, true, true, has.Size
	f.spill = spillState{taken: 1, frames: 1, out: true, has: has, stored: min(has.Payload, has.Size)}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.files[f] = struct{}{}
	return true
}

// SpilledFiles returns the files whose entries only the indexer has, oldest first.
func (x *index) SpilledFiles() (all []Spilled) {
	x.mu.Lock()
	defer x.mu.Unlock()
	crowded := x.maxFiles > 0 && x.filesLocked() > x.maxFiles
	for f := range x.files {
		if f.spill.out {
			one := f.spill.has
			one.Crowds, one.Earlier = crowded && one.Size <= x.small, f.loaded
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Spilled) int { return segmentOf(a.Part, a.Number).CompareAge(segmentOf(b.Part, b.Number)) })
	return all
}

// IsSpilled reports whether only the indexer has the entries of a file.
func (x *index) IsSpilled(p tiers.Part, number uint64) bool {
	return x.spilled(segmentOf(p, number)) != nil
}

// Keeps reports which blocks that the indexer has in files, in parallel, are there: all that lie in
// a file whose entries only the indexer has, and of others what was not evicted.
func (x *index) Keeps(ids []block.ID, in []format.FileID) []bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	keeps, spilled := make([]bool, len(ids)), map[format.FileID]bool{}
	for i, id := range ids {
		is, known := spilled[in[i]]
		if loc := x.blocks[id]; loc != nil && loc.file.id == in[i] {
			is = true
		} else if !known {
			is = x.spilledLocked(in[i]) != nil
			spilled[in[i]] = is
		}
		keeps[i] = is
	}
	return keeps
}

// Spill leaves the entries of the oldest sealed file of this run to the indexer: the
// store does not have its blocks any more, which are read by their places. let is called
// with the ids of the blocks; if it returns false all stays, and other files come before
// this one in the next calls. Files that are in use, or were reloaded, stay. It
// reports whether a file was spilled; if not, the result is the file that was
// refused, and without a number, rank and size when there is none to spill.
// Errors: ErrUnavailable (the indexer fails), ErrClosed.
func (s *Store) Spill(ctx context.Context, let func(ids []block.ID) bool) (Spilled, bool, error) {
	if s.indexer == nil {
		return Spilled{}, false, nil
	}
	if err := s.admit(nil); err != nil {
		return Spilled{}, false, err
	}
	defer s.endJob()
	f, is, here := s.oldestSpillable()
	if f == nil {
		return Spilled{}, false, nil
	}
	defer s.unuse(f)
	if err := s.indexer.Complete(ctx, is.Part, is.Number, is.Size, here); err != nil {
		return is, false, unavailable("leave a segment to the index", err)
	}
	ids := make([]block.ID, len(here))
	for i, it := range here {
		ids[i] = it.Info.ID
	}
	if !let(ids) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.spill.refused++
		return is, false, nil
	}
	handles, ok := s.spill(f, &is, ids)
	for _, h := range handles {
		_ = h.Close() // all in it is durable
	}
	return is, ok, nil
}

// spillableLocked reports whether f, of whose users the caller is so many, can be spilled.
func (x *index) spillableLocked(f *file, users int) bool {
	idle := f.done && f.users == users && !f.removing && !f.gone && !f.stays && f.path != ""
	return f.own && idle && f.spill.isWhole() && !f.spill.out && !f.spill.reloaded &&
		f.poisoned() == nil && (f.live > 0 || x.neededLocked(f))
}

// oldestSpillable returns the file that is to be spilled next, with a user counted, what
// it is and the blocks in it; nil: there is none.
func (x *index) oldestSpillable() (oldest *file, is Spilled, here []Stored) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for f := range x.files {
		if x.spillableLocked(f, 0) && (oldest == nil || cmp.Or(cmp.Compare(f.spill.refused, oldest.spill.refused), f.id.CompareAge(oldest.id)) < 0) {
			oldest = f
		}
	}
	if oldest == nil {
		return nil, is, nil
	}
	oldest.users++
	is = Spilled{Part: oldest.id.Part(), Number: oldest.id.Number, Size: oldest.size, Blocks: oldest.live}
	here = make([]Stored, 0, oldest.live)
	for _, loc := range x.blocks {
		if loc.file == oldest {
			here = append(here, Stored{Info: loc.info, At: placed(loc.as, oldest.id.Path(), loc.off)})
			is.Payload += loc.info.Size
		}
	}
	return oldest, is, here
}

// spill takes what lies in f, of which the caller is the one user, out of memory,
// unless it cannot be spilled any more. The handles it had are the caller's.
func (x *index) spill(f *file, is *Spilled, ids []block.ID) (handles []vfs.File, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || !x.spillableLocked(f, 1) {
		return nil, false
	}
	for st, n := range f.names() {
		if st.records -= n; st.records == 0 {
			delete(x.names, st.key)
		}
		st.hides = true
	}
	for _, st := range x.names {
		loc := x.blocks[st.id]
		st.elsewhere = st.elsewhere || !st.dropped && (st.file == f || loc != nil && loc.file == f)
	}
	is.Blocks, is.Payload = 0, 0
	f.spill.out, f.recs, f.layouts, f.putBytes = true, nil, nil, 0
	for _, id := range ids {
		loc := x.blocks[id]
		if loc == nil || loc.file != f { // it was evicted meanwhile
			continue
		}
		is.Blocks++
		is.Payload += loc.info.Size
		f.spill.stored += loc.as.Size
		x.forgetLocked(loc)
	}
	f.spill.has = *is
	if f.handleMu.TryLock() { // who has it opens the file for nothing
		handles = f.takeHandles()
		delete(x.opened, f)
		f.handleMu.Unlock()
	}
	return handles, true
}

// olderOutLocked reports whether names put no later than seq may lie in a file other than f
// that only the indexer has the entries of, or had: which of them counted is not known. A
// withdrawal of a name whose block was evicted is as old as the name.
func (x *index) olderOutLocked(f *file, seq uint64) bool {
	for other := range x.files {
		if other != f && (other.spill.out || other.spill.reloaded) && other.spill.leastSeq <= seq {
			return true
		}
	}
	return false
}

// noteLinksLocked marks those names that were written to f without a block and stand
// for one that is not in memory: the indexer has it.
func (x *index) noteLinksLocked(f *file, names []format.Record) {
	if x.indexer == nil {
		return
	}
	for _, r := range names {
		if r.Layout == nil && !r.Dropped && x.blocks[r.ID] == nil {
			if st := x.names[nameKey{r.Name.Namespace, r.Name.Key}]; st != nil && st.file == f && st.seq == r.Name.Seq {
				st.elsewhere = true
			}
		}
	}
}

// noteReadLocked does likewise for names that were read: their blocks may lie in files that only
// the indexer has, or in those of a part that this run has not adopted yet. They may also have older
// records in the former.
func (x *index) noteReadLocked(newest map[nameKey]format.Record) {
	if x.indexer == nil {
		return
	}
	out := false
	for f := range x.files {
		out = out || f.spill.out
	}
	for k := range newest {
		if st := x.names[k]; st != nil {
			st.hides = st.hides || out
			st.elsewhere = st.elsewhere || !st.dropped && x.blocks[st.id] == nil
		}
	}
}

// LinkSpilled is Link for a block that only the indexer has.
func (s *Store) LinkSpilled(id block.ID, n block.Name) error {
	return s.enqueue(format.Record{ID: id, Name: n}, false)
}

// Reload reads the entries of a spilled file, to have them in memory for the rest of
// this run. worthOf is called with its records of names and returns what each is worth:
// those that do not count are left out, and while there may be older ones one that hides
// them is withdrawn in its place. The result has each block that is in memory again,
// with those names of it that count and lie in the file. An error leaves the file
// spilled. Errors: ErrNotFound (it is not spilled, or gone), ErrBadFormat, those of
// worthOf, those of IsRefused, ErrUnavailable, ErrClosed.
func (s *Store) Reload(ctx context.Context, p tiers.Part, number uint64, worthOf func([]format.Record) ([]Worth, error)) ([]tiers.Entry, error) {
	id := segmentOf(p, number)
	f := s.spilled(id)
	if f == nil {
		return nil, fmt.Errorf("lustre: %w: %s is not spilled", tiers.ErrNotFound, id.Path())
	}
	c, err := s.Contents(ctx, p, number, -1)
	if err == nil && (!c.Sealed || c.Damage != nil) {
		err = fmt.Errorf("%s: %w", id.Path(), format.Errorf("it had a footer and has none: cascade fsck tells more"))
	}
	if err != nil {
		return nil, err
	}
	worth, err := worthOf(c.Names)
	if err != nil {
		return nil, err
	}
	for _, r := range c.Layouts {
		s.layouts.Note(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, tiers.ErrClosed
	}
	if !f.spill.out {
		return nil, fmt.Errorf("lustre: %w: %s is not spilled any more", tiers.ErrNotFound, f.path)
	}
	entries, withdrawn := s.reloadLocked(f, c, worth, s.pendingLocked())
	s.waiting = append(s.waiting, withdrawn...)
	return entries, nil
}

// spilled returns the file of that id if only the indexer has its entries.
func (x *index) spilled(id format.FileID) *file {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.spilledLocked(id)
}

func (x *index) spilledLocked(id format.FileID) *file {
	for f := range x.files {
		if f.spill.out && f.id == id {
			return f
		}
	}
	return nil
}

// reloadLocked puts c, whose names are worth so much, back, and returns what is to be
// withdrawn. The indexer may have a change of a name before it is durable: what is pending
// has changed nothing yet.
func (x *index) reloadLocked(f *file, c Contents, worth []Worth, pending map[nameKey]struct{}) (entries []tiers.Entry, withdrawn []format.Record) {
	f.spill = spillState{taken: f.spill.taken, frames: f.spill.frames, reloaded: true, leastSeq: noSeq}
	f.read = len(c.Blocks) + len(c.Names) + len(c.Layouts)
	entries = make([]tiers.Entry, 0, len(c.Blocks))
	found := map[block.ID]int{}
	for _, it := range c.Blocks {
		if x.indexLocked(f, it.Info, payloadAt(it.At), it.At.Offset) {
			found[it.Info.ID] = len(entries)
			entries = append(entries, tiers.Entry{Info: it.Info, OtherOwner: !f.own})
		}
	}
	for i, r := range c.Names {
		ended := worth[i] == Hiding && !r.Dropped
		f.spill.noteSeq(r)
		switch {
		case ended && x.olderOutLocked(f, r.Name.Seq):
			r.ID, r.Dropped = block.ID{}, true
			withdrawn = append(withdrawn, r) // the file stays until another has that
		case ended, worth[i] == Outdated:
			if _, ok := pending[nameKey{r.Name.Namespace, r.Name.Key}]; !ok {
				continue
			}
		}
		r.Hides = r.Dropped && worth[i] != Counting
		newest := x.noteLocked(f, r, true)
		if at, ok := found[r.ID]; ok && newest && worth[i] == Counting && !r.Dropped {
			entries[at].Names = append(entries[at].Names, r.Name)
		}
	}
	for _, st := range x.names {
		// A name that is left in memory for its older records stands where it stood.
		st.elsewhere = !st.dropped && x.blocks[st.id] == nil && (st.elsewhere || st.file == f)
	}
	if f.live == 0 {
		x.emptied()
	}
	return entries, withdrawn
}
