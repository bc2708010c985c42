package segment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/pool"
	"cascadekv/lustre/segment/space"
	"cascadekv/tiers"
)

const (
	// mergeBatch bounds what one frame of a merge moves, and so the memory it
	// takes; a larger block is moved alone.
	mergeBatch = 16 << 20

	// A merge that finds requests waiting leaves the file system to them, in
	// steps, but not for ever.
	mergeStep  = 2 * time.Millisecond
	mergeYield = 200 * time.Millisecond
)

// Merged returns what all merges did since Open, also those that failed, or went
// on when their callers had left.
func (s *Store) Merged() tiers.Merged {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.merged
}

// Merge rewrites segments of this rank that hold much that is dead, at most
// about one new segment's worth: live blocks, in the order of their chains, and
// the records of names that still count move to a new segment, and the old ones
// are unlinked. With a budget, in bytes, it goes further when the rank's files
// take more than most of it; 0 is none. If none of that is to be done and there are more
// than Options.MaxFiles, it rewrites some that are not full into one, though they live. While the store is read-only for want of
// room it goes further too, with no more than what room there is. What was moved is
// durable before an old segment goes, and a reader of the old one is not disturbed.
// moved, which must return soon, is called with blocks that have a new place. Between batches
// it waits for requests that wait. An error leaves what was not moved where it is,
// and comes with what was done; when ctx ends first it may be a *Busy, whose work
// goes on, and which only the sum shows then (Merged). Calls at the same time
// wait for each other. Errors: ErrUnavailable, with ErrFull for want of room,
// ErrClosed.
func (s *Store) Merge(ctx context.Context, budget int64, moved func([]block.ID)) (tiers.Merged, error) {
	if err := s.merging.Acquire(ctx); err != nil {
		return tiers.Merged{}, unavailable("wait for another merge", err)
	}
	if err := s.admit(nil); err != nil {
		s.merging.Release()
		return tiers.Merged{}, err
	}
	m := &merge{s: s, ctx: ctx, moved: moved}
	end := func() { s.merging.Release(); s.endJob() }
	err := s.writes.Within(ctx, "merge of segments", end, func() error { return m.run(budget) })
	if _, runs := errors.AsType[*pool.Busy](err); runs {
		return tiers.Merged{}, err
	}
	return m.done, err
}

// merge is one call of Merge.
type merge struct {
	s        *Store
	ctx      context.Context
	moved    func([]block.ID)
	from     []*file
	together bool // all goes into one file
	blocks   []moving
	records  []format.Record // that go without a block
	target   *file           // nil until something is moved
	live     int64           // what the blocks moved to it take there
	memory   *arena.Mapping
	done     tiers.Merged
}

// moving is a live block with the names that go with it.
type moving = space.Chained[*location]

func (m *merge) run(budget int64) error {
	defer m.leave()
	if m.s.ReadOnly() {
		m.s.room.Ask()
	}
	m.from = m.victims(budget)
	if len(m.from) == 0 {
		return nil
	}
	if err := m.s.lease.Verify(m.ctx); err != nil {
		return err
	}
	for _, f := range m.from {
		if err := m.collect(f); err != nil {
			return err
		}
	}
	m.blocks = space.InChains(m.blocks)
	for len(m.blocks)+len(m.records) > 0 {
		if err := m.yield(); err != nil {
			return unavailable("merge of segments", err)
		}
		blocks, records := m.batch()
		extents := make([]wanted, len(blocks))
		for i, b := range blocks {
			extents[i] = wanted{b.Block.file, b.Block.off, b.Block.as.Size, i}
		}
		m.s.advice.advise(extents)
		if err := m.move(blocks, records); err != nil {
			return err
		}
	}
	return m.seal()
}

// victims plans a merge and keeps the files of the plan: those that hold much that is
// dead, or where there are none, some of too many.
func (m *merge) victims(budget int64) []*file {
	if files := m.sparse(budget); len(files) > 0 {
		return files
	}
	return m.crowd()
}

// sparse plans a merge for the space that it gives back.
func (m *merge) sparse(budget int64) []*file {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.opt.SegmentBytes
	short, free := s.room.Short()
	if short {
		most = min(most, free)
	}
	files := space.Files(space.Plan(s.oldestLocked(), budget, most, short))
	for _, f := range files {
		f.users++
	}
	return files
}

// oldestLocked describes the segments that can be rewritten, the oldest first.
func (x *index) oldestLocked() []space.Shape[*file] {
	shapes := x.shapesLocked()
	slices.SortFunc(shapes, func(a, b space.Shape[*file]) int { return a.File.id.CompareAge(b.File.id) })
	return shapes
}

// Sparsest returns the blocks of the n segments of this rank with the fewest bytes of
// blocks, of those that are worth rewriting in a shortage, the emptiest first. When the
// blocks of one are evicted it can be unlinked, which takes no room as a merge does.
func (x *index) Sparsest(n int) [][]block.ID {
	x.mu.Lock()
	defer x.mu.Unlock()
	shapes := slices.DeleteFunc(x.shapesLocked(), func(one space.Shape[*file]) bool {
		return one.File.live == 0 || one.Share() > space.WorthInShortage
	})
	slices.SortFunc(shapes, func(a, b space.Shape[*file]) int { return cmp.Compare(a.File.liveBytes, b.File.liveBytes) })
	shapes = shapes[:min(n, len(shapes))]
	all, at := make([][]block.ID, len(shapes)), map[*file]int{}
	for i, one := range shapes {
		at[one.File] = i
	}
	for id, loc := range x.blocks {
		if i, ok := at[loc.file]; ok {
			all[i] = append(all[i], id)
		}
	}
	return all
}

// collect finds what must be kept of f: its footer lists what is in it, and the
// index what of that counts.
func (m *merge) collect(f *file) error {
	entries, err := f.entries(m.s)
	if err != nil {
		return err
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	names, here := f.names(), map[block.ID]int{}
	for _, e := range entries {
		if loc := m.s.blocks[e.Info.ID]; e.Kind == format.KindBlock && loc != nil && loc.file == f {
			here[e.Info.ID] = len(m.blocks)
			m.blocks = append(m.blocks, moving{Block: loc})
		}
	}
	for _, e := range entries {
		if e.Kind != format.KindName && e.Kind != format.KindDrop {
			continue
		}
		st := m.s.names[nameKey{e.Name.Namespace, e.Name.Key}]
		newest := st != nil && st.seq == e.Name.Seq && st.dropped == (e.Kind == format.KindDrop)
		if !newest || !m.s.keepsLocked(f, st, names[st]) {
			continue
		}
		if i, ok := here[e.Info.ID]; ok && e.Kind == format.KindName {
			m.blocks[i].Names = append(m.blocks[i].Names, e.Name)
		} else {
			m.records = append(m.records, format.Record{ID: e.Info.ID, Name: e.Name, Dropped: e.Kind == format.KindDrop})
		}
	}
	return nil
}

// entries reads what is in f, which the caller keeps.
func (f *file) entries(s *Store) ([]format.Entry, error) {
	h, err := f.open(s)
	if err != nil {
		return nil, unavailable("merge: open "+f.path, err)
	}
	sc := format.Scanner{File: h.File}
	entries, err := sc.Entries(f.id)
	h.back(err != nil)
	if err != nil {
		return nil, unavailable("merge: read the entries of "+f.path, err)
	}
	return entries, nil
}

// yield waits while requests use the file system. A merge has a place among the
// writers itself, so those who wait for a write are counted apart from places.
func (m *merge) yield() error {
	busy := func() bool { return len(m.s.reads) > 0 || m.s.putting.Load() > 0 }
	for end := time.Now().Add(mergeYield); busy() && time.Now().Before(end); {
		select {
		case <-time.After(mergeStep):
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
	}
	return m.ctx.Err()
}

// batch takes the next blocks for one frame, and with the last of them the
// records that have none.
func (m *merge) batch() (blocks []moving, records []format.Record) {
	var bytes int64
	n := 0
	for n < len(m.blocks) && (n == 0 || bytes+format.Align(m.blocks[n].Block.as.Size) <= mergeBatch) {
		bytes += format.Align(m.blocks[n].Block.as.Size)
		n++
	}
	blocks, m.blocks = m.blocks[:n], m.blocks[n:]
	if len(m.blocks) == 0 {
		records, m.records = m.records, nil
	}
	return blocks, records
}

// move writes one frame and points the index to it.
func (m *merge) move(blocks []moving, records []format.Record) error {
	items, moved, err := m.read(blocks)
	if err != nil {
		return err
	}
	if len(items)+len(records) == 0 {
		return nil
	}
	f, err := m.into(items, records)
	if err != nil {
		return err
	}
	fr, err := m.s.append(f, items, records)
	if err == nil {
		err = f.syncTo(fr.number)
	}
	if err == nil {
		err = m.s.lease.VerifyFor(m.ctx, f.id.Incarnation)
	}
	if f.path != "" {
		m.s.note(f, items, records, err == nil)
	}
	if err != nil {
		return unwritten("merge: write", err)
	}
	if err := m.s.indexFrame(m.ctx, f, items, fr); err != nil {
		return unavailable("merge: index", err) // the old files stay
	}
	for _, it := range items {
		m.live += it.As.Footprint()
	}
	return m.relocate(f, items, moved, fr.offs)
}

// read brings blocks into memory, as they are stored. One that is gone is left
// out, a damaged one is withdrawn: it must not get a new checksum's blessing.
func (m *merge) read(blocks []moving) (items []format.Block, moved []*location, err error) {
	var need int64
	for _, b := range blocks {
		need += format.Align(b.Block.as.Size)
	}
	if err := m.room(need); err != nil {
		return nil, nil, err
	}
	at := int64(0)
	for _, b := range blocks {
		payload := m.memory.Bytes()[at : at+b.Block.as.Size]
		err := pread(m.s, b.Block.file, payload, b.Block.off)
		if err != nil {
			err = (&Ref{s: m.s, loc: b.Block}).failed(err)
		} else if why := b.Block.as.Check(payload); why != "" {
			err = m.s.withdraw(b.Block, why)
		}
		m.s.faults.count(err)
		switch {
		case errors.Is(err, tiers.ErrCorrupt):
			continue
		case err != nil:
			return nil, nil, err
		}
		at += format.Align(b.Block.as.Size)
		items = append(items, format.Block{Info: b.Block.info, Names: b.Names, As: b.Block.as, Bytes: payload})
		moved = append(moved, b.Block)
	}
	return items, moved, nil
}

// room makes sure that the merge's memory has n bytes.
func (m *merge) room(n int64) error {
	if m.memory != nil && int64(len(m.memory.Bytes())) >= n {
		return nil
	}
	if m.memory != nil {
		if err := m.memory.Close(); err != nil {
			return err
		}
	}
	var err error
	m.memory, err = arena.MapAnonymous(max(n, mergeBatch))
	if err != nil {
		return fmt.Errorf("merge of segments: %w", err)
	}
	return nil
}

// into returns the segment that takes the next frame.
func (m *merge) into(items []format.Block, records []format.Record) (*file, error) {
	_, need := format.FrameSize(items, records)
	if m.target != nil && !m.together && m.target.isFull(&m.s.opt, need, len(items)) {
		if err := m.seal(); err != nil {
			return nil, err
		}
	}
	if m.target != nil {
		return m.target, nil
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.target = m.s.newFileLocked()
	m.target.users++
	return m.target, nil
}

// relocate points the index to the copies in f, of blocks that are still where
// they were.
func (m *merge) relocate(f *file, items []format.Block, old []*location, offs []int64) error {
	s := m.s
	var ids []block.ID
	s.mu.Lock()
	if f.gone {
		s.mu.Unlock()
		return unavailable("merge: write", errGone)
	}
	for i, it := range items {
		if s.blocks[it.Info.ID] != old[i] {
			continue
		}
		s.forgetLocked(old[i])
		s.indexLocked(f, it.Info, it.As, offs[i])
		ids = append(ids, it.Info.ID)
		m.done.Blocks++
		m.done.Bytes += uint64(it.Info.Size)
	}
	s.mu.Unlock()
	if len(ids) > 0 {
		m.moved(ids)
	}
	return nil
}

// seal ends the target.
func (m *merge) seal() error {
	f := m.target
	if f == nil {
		return nil
	}
	m.target = nil
	err := f.seal()
	m.s.noteSealed(f)
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	f.done = true
	m.done.Written += uint64(f.size)
	f.overhead = f.size - m.live
	m.live = 0
	m.s.unuseLocked(f)
	if err != nil {
		return unwritten("merge: seal", err)
	}
	return nil
}

// leave gives back what the merge used. Old segments with nothing left in them
// are unlinked in the background.
func (m *merge) leave() {
	if m.target != nil { // after an error: it gets no more frames
		_ = m.seal() // the error before it is the one to return
	}
	if m.memory != nil {
		_ = m.memory.Close() // nothing can be done about memory that stays mapped
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	for _, f := range m.from {
		if f.live == 0 && !m.s.neededLocked(f) {
			m.done.Segments++
			m.done.Removed += uint64(f.size)
		}
		m.s.unuseLocked(f)
	}
	if m.done != (tiers.Merged{}) {
		m.done.Merges = 1
		m.s.merged.Add(m.done)
	}
}
