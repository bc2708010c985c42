package catalogue

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// The catalogue has this rank's own files as well, whether their entries are in the
// store's memory too or are spilled. What is written goes into the index once it is
// durable, frame by frame, each in one step (the two phases of SGLang-LSM §3.2).

// own is the parts of this rank, and the files of them that were complete in the index
// when it was opened.
type own struct {
	parts    atomic.Pointer[map[tiers.Part]bool]
	complete map[index.Segment]index.SegmentState // read only once the store has recovered
	behind   sync.Map                             // index.Segment: a file with blocks for which the index goes by another copy
	lacking  atomic.Bool                          // the index was begun anew, and may not have all files yet
	begun    atomic.Uint64                        // how often it was begun anew, counted once lacking is set
}

// openOwn looks which files are complete.
func (c *Catalogue) openOwn() {
	c.own.parts.Store(&map[tiers.Part]bool{})
	c.own.complete = map[index.Segment]index.SegmentState{}
	states, _ := c.index.Segments() // of one that broke at once nothing is known
	for _, s := range states {
		if s.Mark&sealedMark != 0 {
			c.own.complete[s.Segment] = s
		}
	}
}

// Owns reports whether a part is this rank's.
func (c *Catalogue) Owns(p tiers.Part) bool { return (*c.own.parts.Load())[p] }

// addOwn makes a part this rank's.
func (c *Catalogue) addOwn(p tiers.Part) {
	for {
		was := c.own.parts.Load()
		if (*was)[p] {
			return
		}
		parts := maps.Clone(*was)
		parts[p] = true
		if c.own.parts.CompareAndSwap(was, &parts) {
			return
		}
	}
}

func segmentOf(p tiers.Part, number uint64) index.Segment {
	return index.Segment{Rank: p.Rank, Incarnation: p.Incarnation, File: number}
}

// Wrote implements segment.Indexer.
func (c *Catalogue) Wrote(ctx context.Context, p tiers.Part, number uint64, has segment.Contents) error {
	c.addOwn(p)
	s, behind := segmentOf(p, number), false
	b := c.batch(s, has, nil)
	b.Mark, b.Behind = uint64(has.Size), &behind
	err := c.index.PutBatch(ctx, b)
	if err != nil {
		c.spaces.Clear() // what was not put is not known
	}
	if behind {
		c.own.behind.Store(s, true)
	}
	return unavailable(err)
}

// Has implements segment.Indexer.
func (c *Catalogue) Has(p tiers.Part, number uint64) (segment.Spilled, bool) {
	s, ok := c.own.complete[segmentOf(p, number)]
	if !ok {
		return segment.Spilled{}, false
	}
	c.addOwn(p)
	return segment.Spilled{Part: p, Number: number, Size: int64(s.Mark &^ sealedMark), Blocks: int(s.Blocks), Payload: int64(s.Bytes)}, true
}

// Complete implements segment.Indexer. A file with blocks for which the index goes by another copy, which the
// store may have evicted, is recorded only with those by which the store goes: without the other, the next run would
// miss them.
func (c *Catalogue) Complete(ctx context.Context, p tiers.Part, number uint64, size int64, here []segment.Stored) error {
	if c.own.lacking.Load() {
		return unavailable(errLacking)
	}
	s := segmentOf(p, number)
	if _, is := c.own.behind.Load(s); is && here == nil {
		return unavailable(errBehind)
	}
	var elsewhere segment.Contents // blocks of which it goes by another copy, or has none
	if err := c.places(here, func(it segment.Stored, at index.Block) {
		if at.Info.ID.IsZero() || at.Place.Segment != s || at.Place.Offset != it.At.Offset {
			elsewhere.Blocks = append(elsewhere.Blocks, it)
		}
	}); err != nil {
		return unavailable(err)
	}
	b := c.batch(s, elsewhere, nil)
	b.Mark, b.Count = uint64(size)|sealedMark, true
	return unavailable(c.index.PutBatch(ctx, b))
}

// places calls fn with each of some blocks and where the index has it, nothing if in no file. It
// goes by their ids in order: the index finds a next one of many near the last.
func (c *Catalogue) places(blocks []segment.Stored, fn func(it segment.Stored, at index.Block)) error {
	blocks = slices.SortedFunc(slices.Values(blocks), func(a, b segment.Stored) int { return bytes.Compare(a.Info.ID[:], b.Info.ID[:]) })
	for some := range slices.Chunk(blocks, judgeStep) {
		ids, has := make([]block.ID, len(some)), make([]index.Block, len(some))
		for i, it := range some {
			ids[i] = it.Info.ID
		}
		if _, err := c.index.Blocks(ids, has); err != nil {
			return err
		}
		for i, it := range some {
			fn(it, has[i])
		}
	}
	return nil
}

var errLacking = fmt.Errorf("%w: the index is being filled anew", tiers.ErrNotNow)

var errBehind = fmt.Errorf("%w: another copy counts in the index", tiers.ErrNotNow)

// Whole calls look, and returns its error. If the index did not have all of this rank's files
// from before that until after it, what look found says nothing of what it did not find: the
// error is then ErrUnavailable with ErrNotNow, until a round has filled the index.
func (c *Catalogue) Whole(look func() error) error {
	begun := c.own.begun.Load()
	if c.own.lacking.Load() {
		return unavailable(errLacking)
	}
	if err := look(); err != nil {
		return err
	}
	if c.own.lacking.Load() || c.own.begun.Load() != begun {
		return unavailable(errLacking)
	}
	return nil
}

// goneWait bounds how long the index may take to forget a file.
const goneWait = 30 * time.Second

// Gone implements segment.Indexer. What the index does not forget is forgotten by the
// next round.
func (c *Catalogue) Gone(p tiers.Part, number uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), goneWait)
	defer cancel()
	c.lost.forget()
	c.own.behind.Delete(segmentOf(p, number))
	_ = c.index.DeleteSegment(ctx, segmentOf(p, number))
}

// ForgetGone deletes from the index those of this rank's files that are not there: after a
// crash it may have forgotten that they went, and has names in them, for blocks in other
// files, that were withdrawn since. Files of a directory that cannot be listed stay.
func (c *Catalogue) ForgetGone(ctx context.Context) error {
	states, err := c.index.Segments()
	if err != nil {
		return unavailable(err)
	}
	there := map[index.Segment]bool{}
	listed := map[tiers.Part]bool{}
	for p := range *c.own.parts.Load() {
		files, err := c.store.Files(ctx, p)
		if listed[p] = err == nil; !listed[p] {
			continue
		}
		for _, n := range files.Numbers {
			there[segmentOf(p, n)] = true
		}
	}
	for _, s := range states {
		if listed[partOf(s.Segment)] && !there[s.Segment] {
			c.lost.forget()
			if err := c.index.DeleteSegment(ctx, s.Segment); err != nil {
				return unavailable(err)
			}
		}
	}
	return nil
}

// Worth returns what records of a file are worth: those count of which the index has
// none that is newer. A withdrawal hides older ones unless the index has it, knew of none in
// another part, and could read all parts in the last round. Errors: as Whole.
func (c *Catalogue) Worth(records []format.Record) (worth []segment.Worth, err error) {
	err = c.Whole(func() error {
		worth, err = c.worth(records)
		return unavailable(err)
	})
	return worth, err
}

// worth is Worth for an index that has all files.
func (c *Catalogue) worth(records []format.Record) ([]segment.Worth, error) {
	now := c.now()
	return compare(c, len(records), func(i int) *block.Name { return &records[i].Name }, func(i int, e index.Entry) segment.Worth {
		has := e.Name
		r := &records[i]
		newest := has.Key != (index.Key{}) && !has.Dropped && has.Seq == r.Name.Seq && has.ID == r.ID
		if r.Dropped {
			newest = has.Key == (index.Key{}) || has.Seq <= r.Name.Seq
		}
		ended := !r.Dropped && !r.Name.Expires.IsZero() && !r.Name.Expires.After(now)
		alone := has.Dropped && has.Seq == r.Name.Seq && !has.Hides && !c.partial.Load()
		switch {
		case !newest || ended && !has.Outlived:
			return segment.Outdated
		case ended, r.Dropped && !alone:
			return segment.Hiding
		}
		return segment.Counting
	})
}

// Newer implements tiers.Catalogue.
func (c *Catalogue) Newer(names []block.Name) ([]bool, error) {
	newer, err := compare(c, len(names), func(i int) *block.Name { return &names[i] }, func(i int, e index.Entry) bool {
		return e.Name.Seq > names[i].Seq || e.Name.Dropped && e.Name.Seq == names[i].Seq
	})
	return newer, unavailable(err)
}

// compare calls is for n names with what the index has of each, judgeStep at a time.
func compare[T any](c *Catalogue, n int, name func(int) *block.Name, is func(int, index.Entry) T) ([]T, error) {
	answers := make([]T, n)
	for from := 0; from < n; from += judgeStep {
		hashes := make([]index.Key, min(judgeStep, n-from))
		for i := range hashes {
			one := name(from + i)
			hashes[i] = index.NamespaceOf(one.Namespace).Key(one.Key)
		}
		entries := make([]index.Entry, len(hashes))
		if _, err := c.index.PeekBatch(hashes, entries); err != nil {
			return nil, err
		}
		for i, e := range entries {
			answers[from+i] = is(from+i, e)
		}
	}
	return answers, nil
}

// NamesOf returns the names that stand for blocks and are recorded apart from them, in
// files of this rank, and which blocks have such names in those of other parts: in parts that
// are shown, for what the index has of parts that are gone may be withdrawn. Until a round has
// ended any block may.
func (c *Catalogue) NamesOf(ids []block.ID) (names map[block.ID][]block.Name, others map[block.ID]bool, err error) {
	begun, shown := c.own.begun.Load(), c.shown.Load().parts // before the index, which a round fills first
	strays, err := c.index.Strays(ids)
	if err != nil {
		return nil, nil, unavailable(err)
	}
	names, others = map[block.ID][]block.Name{}, map[block.ID]bool{}
	unsure := shown == nil || c.own.begun.Load() != begun
	for i, entries := range strays {
		others[ids[i]] = unsure
		for _, e := range entries {
			p := partOf(e.Segment)
			if !c.Owns(p) {
				others[ids[i]] = others[ids[i]] || shown[p]
				continue
			}
			if f, ok, err := c.foundIn(e); err != nil {
				return nil, nil, err
			} else if ok {
				names[ids[i]] = append(names[ids[i]], f.Name)
			}
		}
	}
	return names, others, nil
}

// Partial reports whether no round has ended, or the last one could not read all parts: names that it
// did not see may stand for any block.
func (c *Catalogue) Partial() bool { return c.partial.Load() }

// PartsLeft counts the rounds that had not all parts of the one before: what became of names in parts that are
// not looked at any more is not known.
func (c *Catalogue) PartsLeft() uint64 { return c.partsLeft.Load() }

// Use is how many names of a file stand for something.
type Use struct {
	Known bool    // the index has the file; if not, the rest says nothing
	Names int     // that do, about
	Stale float64 // share of all that do not any more
}

// UseOf returns that of files. Of a broken index, and until a new one is full, none is known.
func (c *Catalogue) UseOf(files []segment.Spilled) []Use {
	all := make([]Use, len(files))
	var states []index.SegmentState
	if err := c.Whole(func() (err error) {
		states, err = c.index.Segments()
		return err
	}); err != nil {
		return all
	}
	of := make(map[index.Segment]Use, len(states))
	for _, s := range states {
		switch {
		case s.Names > 0 && s.Ended:
			of[s.Segment] = Use{Known: true, Stale: 1}
		case s.Names > 0:
			of[s.Segment] = Use{true, int(s.Names) - int(s.Stale), float64(s.Stale) / float64(s.Names)}
		default:
			of[s.Segment] = Use{Known: true}
		}
	}
	for i, f := range files {
		all[i] = of[segmentOf(f.Part, f.Number)]
	}
	return all
}

// Own implements tiers.Catalogue. The index has what was evicted from a file until that is
// merged: of one whose entries the store knows, the store knows better.
func (c *Catalogue) Own(ids []block.ID) []tiers.Found {
	found := c.blocks(ids, c.Owns)
	var at []int
	var has []block.ID
	var in []format.FileID
	for i, f := range found {
		if f.Info.ID.IsZero() {
			continue
		}
		file, ok := format.ParsePath(f.Segment.Path)
		if !ok {
			found[i] = tiers.Found{}
			continue
		}
		at, has, in = append(at, i), append(has, ids[i]), append(in, file)
	}
	if len(at) == 0 {
		return found
	}
	for j, keeps := range c.store.Keeps(has, in) {
		if !keeps {
			found[at[j]] = tiers.Found{}
		}
	}
	return found
}

// Blocks implements tiers.Catalogue.
func (c *Catalogue) Blocks(ids []block.ID) []tiers.Found { return c.blocks(ids, c.shows()) }

// blocks returns where blocks lie in parts for which in is true; nil: in none.
func (c *Catalogue) blocks(ids []block.ID, in func(tiers.Part) bool) []tiers.Found {
	found := make([]tiers.Found, len(ids))
	blocks := make([]index.Block, len(ids))
	if in == nil {
		return found
	}
	if _, err := c.index.Blocks(ids, blocks); err != nil {
		return found // a miss; Err has the reason
	}
	for i, b := range blocks {
		if !b.Info.ID.IsZero() && in(partOf(b.Place.Segment)) {
			found[i] = tiers.Found{Info: b.Info, Segment: placeOf(b.Place)}
		}
	}
	return found
}

// ScanOwn implements tiers.Catalogue.
func (c *Catalogue) ScanOwn(ns string, all bool, cursor uint64, fn func(tiers.Found) bool) (next uint64, err error) {
	if len(*c.own.parts.Load()) == 0 {
		return 0, nil
	}
	space, more := index.NamespaceOf(ns), true
	next, err = c.index.NamesFrom(cursor, func(e index.Entry) bool {
		in, _, _, _ := cutNote(e.Name.Note)
		if in != space && !all || !c.Owns(partOf(e.Segment)) {
			return more
		}
		if f, ok := foundOf(e); ok {
			f.Name.Namespace = ns
			if in != space {
				s, err := c.space(in)
				if err != nil {
					return more // a name that nobody can ask for
				}
				f.Name.Namespace = s.Text
			}
			more = fn(f) && more
		}
		return more
	})
	return next, unavailable(err)
}
