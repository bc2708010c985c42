package catalogue

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/trust"
	"cascadekv/tiers"
)

// sealedMark is the bit of a segment's mark for one that was read to its
// end. The rest is the size of the file that was read.
const sealedMark = 1 << 63

// AdoptParts implements tiers.Catalogue. fn may be nil. What was shown before an error
// stays shown, unless the index broke.
func (c *Catalogue) AdoptParts(ctx context.Context, parts []tiers.Part, fn func([]tiers.Found)) (tiers.Taken, error) {
	if err := c.lock(ctx); err != nil {
		return tiers.Taken{}, unavailable(err)
	}
	defer c.unlock()
	if fn == nil {
		fn = func([]tiers.Found) {}
	}
	t := taking{c: c, parts: parts, fn: fn, fresh: map[index.Segment]bool{}, infos: map[block.ID]block.Info{}}
	if err := t.run(ctx); err != nil {
		t.done.Left = nil
		return t.done, unavailable(fmt.Errorf("taking in %d parts: %w", len(parts), err))
	}
	return t.done, nil
}

// taking is one round.
type taking struct {
	c     *Catalogue
	parts []tiers.Part
	fn    func([]tiers.Found)
	known map[index.Segment]uint64 // what the index has, with its marks
	fresh map[index.Segment]bool
	lost  map[index.Segment]bool // what is read because names lead nowhere; true: some of its own
	done  tiers.Taken
	lacks bool // an own directory could not be listed, or an own file not be read

	infos map[block.ID]block.Info // memory of take
	found []tiers.Found
}

func (t *taking) run(ctx context.Context) error {
	c := t.c
	c.partial.Store(true)
	for p := range c.shown.Load().parts {
		if !slices.Contains(t.parts, p) {
			c.partsLeft.Add(1)
			break
		}
	}
	if err := t.mend(ctx); err != nil {
		return err
	}
	states, err := c.index.Segments()
	if err != nil {
		return err
	}
	t.known = make(map[index.Segment]uint64, len(states))
	for _, s := range states {
		t.known[s.Segment] = s.Mark
	}
	there, read, err := t.list(ctx)
	if err != nil {
		return err
	}
	mine, err := t.listOwn(ctx, there)
	if err != nil {
		return err
	}
	read = append(read, mine...)
	if err := t.tidy(ctx, there); err != nil {
		return err
	}
	if len(read) > 0 {
		if err := c.index.Load(ctx, t.contents(ctx, read)); err != nil {
			c.spaces.Clear() // what was not put is not known
			return err
		}
	}
	if err := t.judge(ctx); err != nil {
		return err
	}
	if err := t.weigh(there); err != nil {
		return err
	}
	t.show(there)
	if !t.lacks {
		c.own.lacking.Store(false)
	}
	return nil
}

// weigh adds up what the parts take.
func (t *taking) weigh(there map[index.Segment]bool) error {
	states, err := t.c.index.Segments()
	if err != nil {
		return err
	}
	bytes := map[tiers.Part]int64{}
	for _, s := range states {
		if there[s.Segment] {
			bytes[partOf(s.Segment)] += int64(s.Mark &^ sealedMark)
		}
	}
	for i, p := range t.parts {
		t.done.Left[i].Bytes = bytes[p]
	}
	return nil
}

// mend begins anew when the index is broken.
func (t *taking) mend(ctx context.Context) error {
	c := t.c
	if c.index.Err() == nil {
		return nil
	}
	c.shown.Store(&round{})
	c.spaces.Clear()
	c.own.lacking.Store(true)
	c.own.begun.Add(1)
	return c.index.Rebuild(ctx, func(func(index.Batch, error) bool) {})
}

// list returns the segments of the parts, and those of them to read.
func (t *taking) list(ctx context.Context) (there map[index.Segment]bool, read []index.Segment, err error) {
	there, t.lost = map[index.Segment]bool{}, t.c.lost.take()
	t.done.Left = make([]tiers.Left, len(t.parts))
	for i, p := range t.parts {
		listing, err := t.files(ctx, p)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case errors.Is(err, tiers.ErrClosed):
			return nil, nil, err
		case errors.Is(err, trust.ErrRefused): // the store counts these
			continue
		case err != nil:
			if !trust.IsRefused(err) {
				t.done.Skipped = append(t.done.Skipped, err)
			}
			for s := range t.known { // for all that is known, they are where they were
				if partOf(s) == p {
					there[s] = true
				}
			}
			continue
		}
		t.done.Left[i].Ended = listing.Ended
		for _, n := range t.c.lost.more(p, listing.Numbers, mostLost-len(t.lost)) {
			if s := segmentOf(p, n); !t.lost[s] {
				t.lost[s] = false
			}
		}
		for _, n := range listing.Numbers {
			s := index.Segment{Rank: p.Rank, Incarnation: p.Incarnation, File: n}
			there[s] = true
			_, lost := t.lost[s]
			whole := t.known[s]&sealedMark != 0
			if lost && !whole {
				t.known[s] = 0 // it is read whether or not it has grown
			}
			if lost || !whole {
				read = append(read, s)
			}
		}
	}
	return there, read, nil
}

// listOwn adds this rank's own files that are known and there, and returns those that
// the index has lost: what is written goes into it anyway.
func (t *taking) listOwn(ctx context.Context, there map[index.Segment]bool) (read []index.Segment, err error) {
	refill := t.c.own.lacking.Load()
	for p := range *t.c.own.parts.Load() {
		listing, err := t.files(ctx, p)
		if ctx.Err() != nil || errors.Is(err, tiers.ErrClosed) {
			return nil, errors.Join(ctx.Err(), err)
		}
		if err != nil { // for all that is known, they are where they were
			t.lacks = true
			for s := range t.known {
				there[s] = there[s] || partOf(s) == p
			}
			continue
		}
		for _, n := range listing.Numbers {
			s := segmentOf(p, n)
			there[s] = true
			mark, known := t.known[s]
			if refill && mark&sealedMark == 0 { // what was written since may be all that is known of it
				delete(t.known, s)
				known = false
			}
			if !known {
				read = append(read, s)
			}
		}
	}
	return read, nil
}

// patience bounds the time for one file or directory: a server that does not
// answer must not hold up all others.
const patience = 2 * time.Minute

func (t *taking) files(ctx context.Context, p tiers.Part) (segment.Listing, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return t.c.store.Files(ctx, p)
}

func (t *taking) read(ctx context.Context, s index.Segment) (segment.Contents, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return t.c.store.Contents(ctx, partOf(s), s.File, int64(t.known[s]))
}

// tidy deletes from the index segments of the round whose files are gone, and
// those of parts that were left out of this round and the one before.
func (t *taking) tidy(ctx context.Context, there map[index.Segment]bool) error {
	asked := map[tiers.Part]bool{}
	for _, p := range t.parts {
		asked[p] = true
	}
	for p := range *t.c.own.parts.Load() {
		asked[p] = true
	}
	left := map[tiers.Part]bool{}
	for s := range t.known {
		p := partOf(s)
		if !asked[p] && !t.c.left[p] {
			left[p] = true
			continue
		}
		if asked[p] && there[s] {
			continue
		}
		t.c.lost.forget()
		if err := t.c.index.DeleteSegment(ctx, s); err != nil {
			return err
		}
		t.done.Gone++
	}
	t.c.left = left
	return nil
}

// contents reads segments, several at once, and yields them as they come.
func (t *taking) contents(ctx context.Context, read []index.Segment) iter.Seq2[index.Batch, error] {
	type result struct {
		segment index.Segment
		has     segment.Contents
		err     error
	}
	return func(yield func(index.Batch, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		var readers sync.WaitGroup
		defer readers.Wait()
		defer stop()
		results := make(chan result)
		var next atomic.Int64
		for range min(t.c.readers, len(read)) {
			readers.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(read)) && ctx.Err() == nil; i = next.Add(1) - 1 {
					has, err := t.read(ctx, read[i])
					select {
					case results <- result{read[i], has, err}:
					case <-ctx.Done():
					}
				}
			})
		}
		for range read {
			var r result
			select {
			case r = <-results:
			case <-ctx.Done():
				yield(index.Batch{}, ctx.Err())
				return
			}
			switch {
			case errors.Is(r.err, tiers.ErrNotFound): // it was merged away meanwhile
			case errors.Is(r.err, tiers.ErrClosed) || ctx.Err() != nil && r.err != nil:
				yield(index.Batch{}, r.err)
				return
			case trust.IsRefused(r.err): // the store counts these
			case r.err != nil:
				t.lacks = t.lacks || t.c.Owns(partOf(r.segment))
				t.done.Skipped = append(t.done.Skipped, r.err)
			case r.has.Unchanged:
			case !yield(t.batch(r.segment, r.has)):
				return
			}
		}
	}
}

// batch is what is to be put of a segment that was read.
func (t *taking) batch(s index.Segment, has segment.Contents) (index.Batch, error) {
	t.c.read.Add(1)
	t.done.Read++
	met, lost := t.lost[s]
	if met {
		if err := t.c.seekOthers(s, has); err != nil {
			return index.Batch{}, err
		}
	}
	if lost && t.known[s]&sealedMark != 0 {
		return t.c.nowhere(s, has)
	}
	return t.take(s, has), nil
}

// take is what a segment holds in the words of the index.
func (t *taking) take(s index.Segment, has segment.Contents) index.Batch {
	c := t.c
	if has.Damage != nil {
		t.done.Skipped = append(t.done.Skipped, fmt.Errorf("%s: %w", segment.Path(partOf(s), s.File), has.Damage))
	}
	for _, r := range has.Layouts {
		c.store.Observe(r.Name.Namespace, r.Name.Seq, *r.Layout)
	}
	own := c.Owns(partOf(s))
	var older []bool
	if !own {
		older = t.weighNames(s, has)
	}
	b := c.batch(s, has, older)
	b.Mark = uint64(has.Size)
	if has.Sealed && (!own || c.store.IsSpilled(partOf(s), s.File)) {
		b.Mark |= sealedMark // of others Complete judges
	}
	return b
}

// weighNames counts what another rank's segment has, reports its names, and returns
// which of them are void for what this rank has itself.
func (t *taking) weighNames(s index.Segment, has segment.Contents) (older []bool) {
	t.fresh[s] = true
	clear(t.infos)
	for _, it := range has.Blocks {
		t.infos[it.Info.ID] = it.Info
		t.done.Blocks++
		t.done.Bytes += it.Info.Size
	}
	older = t.c.store.Older(has.Names)
	found := t.found[:0]
	for i := range has.Names {
		r := &has.Names[i]
		if !older[i] {
			f := tiers.Found{Info: t.infos[r.ID], Name: r.Name, Dropped: r.Dropped}
			f.Info.ID = r.ID // the block may lie in another file
			found = append(found, f)
		}
		if !older[i] && !r.Dropped {
			t.done.Names++
		}
	}
	t.fn(found)
	t.found = found
	return older
}

// batch is what a segment, or a part of it, holds in the words of the index, but for the
// mark. older has which names are void, nil: none.
func (c *Catalogue) batch(s index.Segment, has segment.Contents, older []bool) index.Batch {
	b := index.Batch{Segment: s, Blocks: make([]index.Block, 0, len(has.Blocks)), Names: make([]index.Name, 0, len(has.Names))}
	for _, it := range has.Blocks {
		p := it.At
		b.Blocks = append(b.Blocks, index.Block{Info: it.Info, Place: index.Place{
			Segment: s, Offset: p.Offset, Stored: p.Stored, StoredCRC: p.StoredCRC, Codec: p.Codec,
		}})
	}
	var space string // names of one namespace mostly come together
	ns, known := index.NamespaceOf(space), false
	for i := range has.Names {
		r := &has.Names[i]
		if r.Name.Namespace != space {
			space, ns, known = r.Name.Namespace, index.NamespaceOf(r.Name.Namespace), false
		}
		n := ns.Name(r.ID, r.Name)
		if r.Dropped || older != nil && older[i] {
			n = index.Name{Key: n.Key, Seq: n.Seq, Dropped: true}
		} else {
			n.Note = note(ns, r.Name)
			if !known {
				c.declare(&b, ns, space)
				known = true
			}
		}
		b.Names = append(b.Names, n)
	}
	return b
}

// judge reports to the store which of its withdrawals hide something, and withdraws
// here what it has as void: the index may have lost that. Any may hide what could not be read.
func (t *taking) judge(ctx context.Context) error {
	var failed error
	partial := len(t.done.Skipped) > 0 || t.lacks
	t.c.partial.Store(partial)
	t.c.store.Hides(func(names []block.Name) []bool {
		hides := make([]bool, len(names))
		for from := 0; from < len(names); from += judgeStep {
			some := names[from:min(from+judgeStep, len(names))]
			for i := range some {
				some[i].Seq++ // up to it, not below
			}
			older, drops, err := t.c.older(some, true)
			err = errors.Join(err, t.c.tombstone(ctx, drops))
			for i := range some {
				some[i].Seq--
				hides[from+i] = err != nil || partial || older[i]
			}
			failed = errors.Join(failed, err)
		}
		return hides
	})
	return failed
}

// judgeStep is how many names are looked up at once.
const judgeStep = 1024

// show makes the round's names findable.
func (t *taking) show(there map[index.Segment]bool) {
	was := t.c.shown.Load()
	r := &round{parts: make(map[tiers.Part]bool, len(t.parts)), fresh: t.fresh}
	for _, p := range t.parts {
		r.parts[p] = true
	}
	for s := range there {
		if p := partOf(s); r.parts[p] && !was.parts[p] {
			r.fresh[s] = true
		}
	}
	t.done.Fresh = len(r.fresh) > 0
	t.c.shown.Store(r)
}
