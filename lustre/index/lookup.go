package index

import (
	"cascadekv/internal/block"
)

// Get returns where a block lies. Errors: ErrNotFound, ErrBroken (a miss too),
// ErrClosed.
func (x *Index) Get(id block.ID) (b Block, err error) {
	ok, t := false, trail{}
	err = x.read(func(r *reader) error {
		rec, found, err := r.block(id)
		t.search(found)
		if found {
			b, ok = r.engine.blockAt(id, rec.place)
		}
		return err
	})
	return b, x.point(ok, t, err)
}

// Blocks finds many blocks by their ids, for the caller's upkeep: Stats, and so
// what the index is tuned for, have nothing of it. dst, as long as ids, gets
// where each lies; a miss, and a zero id, leave its block id zero. It returns how
// many were found. Errors: ErrBroken, ErrClosed; then all are misses.
func (x *Index) Blocks(ids []block.ID, dst []Block) (n int, err error) {
	if len(dst) != len(ids) {
		return 0, badItem("room for %d blocks of %d ids", len(dst), len(ids))
	}
	clear(dst)
	err = x.read(func(r *reader) error {
		n = 0
		for i, id := range ids {
			if id.IsZero() {
				continue
			}
			rec, found, err := r.block(id)
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			if b, ok := r.engine.blockAt(id, rec.place); ok {
				dst[i] = b
				n++
			}
		}
		return nil
	})
	if err != nil {
		clear(dst)
		return 0, err
	}
	return n, nil
}

// Find returns where the block lies that a name calls, and the name's record.
// Parent is not known. Errors: ErrNotFound (no such name, or an expired one, or
// its block is gone), ErrBroken (a miss too), ErrClosed.
func (x *Index) Find(k Key) (Block, Name, error) {
	var e [1]Entry
	found, t, err := x.entries([]Key{k}, e[:])
	return e[0].Block, e[0].Name, x.point(found == 1, t, err)
}

// point counts a search for one thing and gives a miss its error.
func (x *Index) point(ok bool, t trail, err error) error {
	switch {
	case err != nil:
		return err
	case !ok:
		x.count.lookups(1, 0, t)
		return ErrNotFound
	}
	x.count.lookups(1, 1, t)
	return nil
}

// each looks for names one after the other with one reader, until look returns that it is
// enough, and returns how many were looked for, how many are found, and how. After an error
// none are.
func (x *Index) each(names []Key, look func(r *reader, i int) (found, more bool, err error)) (looked, n int, t trail, err error) {
	err = x.read(func(r *reader) error {
		looked, n, r.trail = 0, 0, trail{}
		defer func() { t = r.trail }()
		for more := true; more && looked < len(names); looked++ {
			var found bool
			if found, more, err = look(r, looked); err != nil {
				return err
			}
			if found {
				n++
			}
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return looked, n, t, err
}

// counts reports whether a name is one that is neither withdrawn nor expired,
// in a segment that is alive.
func (x *Index) counts(r *reader, rec *nameRecord) bool {
	if rec.flags&flagDropped != 0 || !r.engine.segments.alive(rec.segment) {
		return false
	}
	return rec.flags&flagExpires == 0 || rec.expires.After(x.opt.Now())
}

// place returns where a name's block lies, and whether that is alive. A copy whose segment is
// gone may be older than the block's own record.
func (r *reader) place(rec *nameRecord) (at place, ok bool, err error) {
	if rec.flags&flagCopy != 0 && r.engine.segments.alive(rec.copy.segment) {
		return rec.copy, true, nil
	}
	held, found, err := r.block(rec.id)
	return held.place, found && r.engine.segments.alive(held.place.segment), err
}

// resolve is place in the caller's form.
func (r *reader) resolve(rec *nameRecord) (b Block, ok bool, err error) {
	at, ok, err := r.place(rec)
	if ok {
		b, ok = r.engine.blockAt(rec.id, at)
	}
	return b, ok, err
}

// blockAt gives a place its segment; false when that is gone.
func (e *engine) blockAt(id block.ID, at place) (Block, bool) {
	row := e.segments.row(at.segment)
	if row == nil {
		return Block{}, false
	}
	return Block{
		Info: block.Info{ID: id, Size: at.size, CRC: at.crc},
		Place: Place{
			Segment: row.segment, Offset: at.offset, Stored: at.stored, StoredCRC: at.storedCRC, Codec: at.codec,
		},
	}, true
}

// name returns a record in the caller's form.
func (rec nameRecord) name(at spot) Name {
	depth := at.pos - 1
	if at.pos == alone {
		depth = rec.depth
	}
	return Name{
		Key: rec.key, ID: rec.id, Depth: depth, Seq: rec.seq, Expires: rec.expires,
		Prefix: rec.flags&flagPrefix != 0, Bound: rec.flags&flagBound != 0, Inferred: rec.flags&flagInferred != 0, Hides: rec.flags&flagHides != 0,
		Outlived: rec.flags&flagOutlived != 0, Dropped: rec.flags&flagDropped != 0, Note: rec.note,
	}
}

// scan calls fn for up to most keys of a kind from one on, and returns where to
// go on; nil at the end. Key and value die with fn's return.
func (r *reader) scan(from []byte, most int, kind byte, fn func(key, value []byte) error) ([]byte, error) {
	if err := r.open(&r.side); err != nil {
		return nil, err
	}
	ok := r.side.SeekGE(from)
	for n := 0; ok && r.side.Key()[0] == kind; n++ {
		if n == most {
			return append([]byte(nil), r.side.Key()...), nil
		}
		value, err := r.side.ValueAndErr()
		if err == nil {
			err = fn(r.side.Key(), value)
		}
		if err != nil {
			return nil, err
		}
		ok = r.side.Next()
	}
	return nil, r.side.Error()
}
