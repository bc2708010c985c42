package index

// FindBatch is GetBatch with the records of the names, and costs a little more.
// It also returns names that lead nowhere, while the segment of their record is
// alive. dst is as long as names; Parent is not known. It returns how many lead
// to a block. Errors: ErrBroken, ErrClosed; then nothing is found.
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
	n, t, err = x.each(names, func(r *reader, i int) (bool, error) {
		f, err := r.name(names[i])
		if err != nil || !f.found {
			return false, err
		}
		rec, err := decodeNameRecord(f.value)
		if err != nil {
			return false, err
		}
		dst[i], err = x.entry(r, rec, f.at)
		return !dst[i].Block.Info.ID.IsZero(), err
	})
	if err != nil {
		clear(dst)
	}
	return n, t, err
}

// entry completes a record that lies at a spot. It is zero when the record's
// segment is gone.
func (x *Index) entry(r *reader, rec nameRecord, at spot) (e Entry, err error) {
	row := r.engine.segments.row(rec.segment)
	if row == nil {
		return e, nil
	}
	e.Name, e.Segment = rec.name(at), row.segment
	if !x.counts(r, rec) {
		return e, nil
	}
	b, ok, err := r.resolve(rec)
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
			some, from, err = x.someNames(r, from, some[:0])
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

// someNames appends what some names from a key on lead to, and returns where to
// go on.
func (x *Index) someNames(r *reader, from []byte, some []Entry) ([]Entry, []byte, error) {
	const most = 512
	type lying struct {
		rec nameRecord
		at  spot
	}
	var found []lying
	next, err := r.scan(from, most, kindName, func(key, value []byte) error {
		if isLink(value) {
			return nil
		}
		at, err := decodeNameKey(key)
		if err != nil {
			return err
		}
		rec, err := decodeNameRecord(value)
		if err == nil && x.counts(r, rec) {
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
			some = append(some, e)
		}
	}
	return some, next, err
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
