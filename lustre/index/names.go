package index

import "cascadekv/internal/block"

// FindBatch finds the records of many names and the blocks that they lead to, which costs
// least for names of one chain in their order. It also returns names that lead nowhere, while
// the segment of their record is alive. dst is as long as names; Parent is not known. It
// returns how many lead to a block. Errors: ErrBroken, ErrClosed; then nothing is found.
func (x *Index) FindBatch(names []Key, dst []Entry) (n int, err error) {
	n, t, err := x.entries(names, dst)
	if err == nil {
		x.count.lookups(len(names), n, t)
	}
	return n, err
}

// PeekBatch is FindBatch for the caller's upkeep: Stats, and so what the index
// is tuned for, have nothing of it.
func (x *Index) PeekBatch(names []Key, dst []Entry) (n int, err error) {
	n, _, err = x.entries(names, dst)
	return n, err
}

func (x *Index) entries(names []Key, dst []Entry) (n int, t trail, err error) {
	if len(dst) != len(names) {
		return 0, t, badItem("room for %d entries of %d names", len(dst), len(names))
	}
	clear(dst)
	_, n, t, err = x.each(names, func(r *reader, i int) (found, more bool, err error) {
		f, err := r.name(names[i])
		if err != nil || !f.found {
			return false, true, err
		}
		rec, err := decodeNameRecord(f.value)
		if err == nil {
			dst[i], err = x.entry(r, rec, f.at)
		}
		return !dst[i].Block.Info.ID.IsZero(), true, err
	})
	if err != nil {
		clear(dst)
	}
	return n, t, err
}

// Presence is what Probe reports of a name that counts.
type Presence struct {
	Segment Segment // where the name's record lies
	Lost    bool    // its block is nowhere; the rest is not set
	Size    int64   // of the block, in bytes
	Seq     uint64
	Bound   bool
	Note    []byte // of the index: dies with the call
}

// Probe is FindBatch for those who ask only which names lead to a block: it calls fn with
// each name, by its place in names, nil for one that does not count, until fn returns false, and
// allocates nothing for it. fn must not keep p. Errors: ErrBroken, ErrClosed; then nothing
// that fn was called with counts.
func (x *Index) Probe(names []Key, fn func(i int, p *Presence) (more bool)) error {
	var p Presence
	looked, n, t, err := x.each(names, func(r *reader, i int) (found, more bool, err error) {
		if found, err = x.present(r, names[i], &p); err != nil || !found {
			return false, err == nil && fn(i, nil), err
		}
		return !p.Lost, fn(i, &p), nil
	})
	if err == nil {
		x.count.lookups(looked, n, t)
	}
	return err
}

// present looks for a name, and reports whether it counts.
func (x *Index) present(r *reader, k Key, p *Presence) (bool, error) {
	f, err := r.name(k)
	if err != nil || !f.found {
		return false, err
	}
	rec, note, err := cutNameRecord(f.value)
	row := r.engine.segments.row(rec.segment)
	if err != nil || row == nil || !x.counts(r, &rec) {
		return false, err
	}
	at, ok, err := r.place(&rec)
	if *p = (Presence{Segment: row.segment, Lost: true}); ok {
		*p = Presence{Segment: row.segment, Size: at.size, Seq: rec.seq, Bound: rec.flags&flagBound != 0, Note: note}
	}
	return err == nil, err
}

// entry completes a record that lies at a spot. It is zero when the record's
// segment is gone.
func (x *Index) entry(r *reader, rec nameRecord, at spot) (e Entry, err error) {
	row := r.engine.segments.row(rec.segment)
	if row == nil {
		return e, nil
	}
	e.Name, e.Segment = rec.name(at), row.segment
	if !x.counts(r, &rec) {
		return e, nil
	}
	b, ok, err := r.resolve(&rec)
	if ok {
		e.Block = b
	}
	return e, err
}

// Names calls fn for every name that leads to a block, in no particular order,
// until fn returns an error, which it returns. What is put or deleted meanwhile
// may be seen or not. fn may use the index. Errors: ErrBroken, ErrClosed.
func (x *Index) Names(fn func(Entry) error) error {
	var some []Entry
	for from := []byte{kindName}; from != nil; {
		err := x.read(func(r *reader) (err error) { // no reader is kept while fn runs
			some, _, from, err = x.someNames(r, from, some[:0], nil)
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range some {
			if err := fn(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// NamesFrom is Names for some of all names, from a cursor on that an earlier call
// returned, 0 for the first; its two lowest bits may be cleared. It calls fn for the names
// of some runs until that returns false, or it has passed many over, and then for the
// rest of the last run. It returns the cursor to go on with, 0 at the end. What is there
// all the while is seen at least once.
func (x *Index) NamesFrom(cursor uint64, fn func(Entry) bool) (next uint64, err error) {
	const least = 4096
	var some []Entry
	from, more := be.AppendUint64([]byte{kindName}, cursor), true
	for passed := 0; from != nil; passed += stepNames {
		if passed >= 16*least && len(some) == 0 {
			return be.Uint64(from[1:9]), nil // nothing that counts, for long
		}
		var groups []uint64
		err := x.read(func(r *reader) (err error) {
			some, groups, from, err = x.someNames(r, from, some[:0], nil)
			return err
		})
		if err != nil {
			return 0, err
		}
		for i, e := range some {
			if last := next>>2 == groups[i]>>2; !last && (!more || passed+i >= least) {
				return groups[i], nil
			}
			next = groups[i]
			more = fn(e) && more
		}
	}
	return 0, nil
}

// stepNames is how many keys are looked at with one reader.
const stepNames = 512

// someNames appends what some names from a key on lead to, with numbers in the order of
// their runs, and returns where to go on.
func (x *Index) someNames(r *reader, from []byte, some []Entry, runs []uint64) ([]Entry, []uint64, []byte, error) {
	type lying struct {
		rec nameRecord
		at  spot
	}
	var found []lying
	next, err := r.scan(from, stepNames, kindName, func(key, value []byte) error {
		if isLink(value) {
			return nil
		}
		at, err := decodeNameKey(key)
		if err != nil {
			return err
		}
		rec, err := decodeNameRecord(value)
		if err == nil && x.counts(r, &rec) {
			found = append(found, lying{rec, at})
		}
		return err
	})
	for _, l := range found { // scan has let go of the iterator that this needs
		if err != nil {
			break
		}
		var e Entry
		if e, err = x.entry(r, l.rec, l.at); !e.Block.Info.ID.IsZero() {
			some, runs = append(some, e), append(runs, be.Uint64(l.at.run[:]))
		}
	}
	return some, runs, next, err
}

// Strays returns, for each of ids, the names that count and lead to this block but
// did not come in one batch with it, so that whoever has read the batch does not
// know them; some that did may be among them. The ids are not zero. Stats have
// nothing of it. Errors: ErrBroken, ErrClosed.
func (x *Index) Strays(ids []block.ID) (all [][]Entry, err error) {
	err = x.read(func(r *reader) (err error) {
		all = make([][]Entry, len(ids))
		for i := 0; i < len(ids) && err == nil; i++ {
			all[i], err = x.strays(r, ids[i])
		}
		return err
	})
	if err != nil {
		all = nil
	}
	return all, err
}

func (x *Index) strays(r *reader, id block.ID) (some []Entry, err error) {
	keys, err := r.strays(id)
	for i := 0; i < len(keys) && err == nil; i++ {
		var f found
		if f, err = r.search(keys[i]); err != nil || !f.found {
			continue
		}
		var rec nameRecord
		if rec, err = decodeNameRecord(f.value); err != nil || rec.id != id || !x.counts(r, &rec) {
			continue
		}
		var e Entry
		if e, err = x.entry(r, rec, f.at); e.Name.Key != (Key{}) {
			some = append(some, e)
		}
	}
	return some, err
}

// strays returns the names of all stray keys of a block.
func (r *reader) strays(id block.ID) (all []Key, err error) {
	if err := r.open(&r.side); err != nil {
		return nil, err
	}
	for ok := r.side.SeekPrefixGE(appendStrays(r.key[:0], id)); ok; ok = r.side.Next() {
		_, name, err := decodeStrayKey(r.side.Key())
		if err != nil {
			return nil, err
		}
		all = append(all, name)
	}
	return all, r.side.Error()
}

// Space returns what a batch had of a namespace. Errors: ErrNotFound, ErrBroken (a miss
// too), ErrClosed.
func (x *Index) Space(ns Namespace) (s Space, err error) {
	ok := false
	err = x.read(func(r *reader) error {
		value, found, err := r.get(appendSpaceKey(r.key[:0], ns))
		if err == nil && found {
			ok = true
			s, err = decodeSpace(value)
		}
		return err
	})
	if err == nil && !ok {
		err = ErrNotFound
	}
	return s, err
}

// Spaces returns all namespaces that batches had. Errors: ErrBroken, ErrClosed.
func (x *Index) Spaces() (all []Space, err error) {
	err = x.read(func(r *reader) error {
		all = nil
		for from := []byte{kindSpace}; from != nil; {
			var err error
			from, err = r.scan(from, 512, kindSpace, func(_, value []byte) error {
				s, err := decodeSpace(value)
				all = append(all, s)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}
