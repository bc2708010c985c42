package index

import (
	"context"
	"time"
)

// DeleteSegment takes all entries of a segment out of the index, in one step
// that does not depend on their number: what lies in it is a miss when it
// returns. A segment that is not known is deleted already. What was put again
// later, into other segments, stays. Errors: ErrBroken, ErrClosed, the
// context's.
func (x *Index) DeleteSegment(ctx context.Context, s Segment) error {
	e, err := x.lock(ctx)
	if err != nil {
		return err
	}
	row, number := e.segments.of(s)
	if number == 0 {
		e.unlock()
		return nil
	}
	row.dead = true
	b := e.db.NewBatch()
	if err := b.Set(appendSegmentKey(nil, number), appendSegmentRow(nil, row), nil); err != nil {
		e.unlock()
		return e.fail(err)
	}
	e.segments.set(number, row)
	if err := e.commit(ctx, b); err != nil {
		return err
	}
	if dead := e.segments.deadEntries.Load(); dead >= x.opt.cleanAfter && dead >= e.segments.entries.Load()/3 {
		x.cleanSoon()
	}
	return nil
}

// cleanSoon removes dead entries in the background. So each of them costs the
// scan of three live ones at most, and they are a quarter of all at most.
func (x *Index) cleanSoon() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed.Load() || x.cleaning.Swap(true) {
		return
	}
	x.cleaned.Go(func() {
		defer x.cleaning.Store(false)
		// A failure broke the index or found it closed; its caller hears of that.
		_ = x.clean()
	})
}

// cleanStep is how many keys are looked at, and how many removed, at a time.
const cleanStep = 2048

// clean removes the entries of the segments that are dead when it begins, then
// strays that say nothing, and then these segments' rows.
func (x *Index) clean() error {
	first, numbers, err := x.deadNumbers()
	if err != nil || len(numbers) == 0 {
		return err
	}
	for _, kind := range []byte{kindBlock, kindName, kindStray} {
		for from := []byte{kind}; from != nil; {
			began := time.Now()
			if from, err = x.cleanFrom(from, kind); err != nil {
				return err
			}
			pause(began, x.stop)
			if x.closed.Load() {
				return ErrClosed
			}
		}
	}
	e, err := x.lock(context.Background())
	if err != nil {
		return err
	}
	if e.segments != first {
		e.unlock() // rebuilt meanwhile
		return nil
	}
	return e.dropRows(numbers)
}

// dropRows removes the rows of dead segments of which no entry is left, and ends
// its caller's turn. Copies of their places may still lie about, so a number must
// not come again: the row of the highest stays, and so the next one is higher.
func (e *engine) dropRows(numbers []uint32) error {
	b := e.db.NewBatch()
	for _, n := range numbers {
		row, key := e.segments.dead[n], appendSegmentKey(nil, n)
		var err error
		if e.segments.forget(n); n == e.segments.next-1 {
			row.entries = 0
			e.segments.set(n, row)
			err = b.Set(key, appendSegmentRow(nil, row), nil)
		} else {
			err = b.Delete(key, nil)
		}
		if err != nil {
			e.unlock()
			return e.fail(err)
		}
	}
	return e.commit(context.Background(), b)
}

func (x *Index) deadNumbers() (*segmentTable, []uint32, error) {
	e, err := x.lock(context.Background())
	if err != nil {
		return nil, nil, err
	}
	defer e.unlock()
	var numbers []uint32
	for n := range e.segments.dead {
		numbers = append(numbers, n)
	}
	return e.segments, numbers, nil
}

// cleanFrom removes what is dead among the next keys and returns where to go on.
// What it saw may have been put again since, so it is looked at once more with
// nobody else writing.
func (x *Index) cleanFrom(from []byte, kind byte) (next []byte, err error) {
	var keys [][]byte
	err = x.read(func(r *reader) (err error) {
		next, err = r.scan(from, cleanStep, kind, func(key, value []byte) error {
			dead, err := r.isDead(kind, key, value)
			if dead {
				keys = append(keys, append([]byte(nil), key...))
			}
			return err
		})
		return err
	})
	if err != nil || len(keys) == 0 {
		return next, err
	}
	removed := 0
	err = x.change(context.Background(), newPlanner(0, 0, 0), func(p *planner) error {
		for _, key := range keys {
			value, found, err := p.reader.get(key)
			dead := false
			if found && err == nil {
				dead, err = p.reader.isDead(kind, key, value)
			}
			if dead && err == nil {
				err = p.remove(kind, key, value)
				if kind != kindStray { // which nobody counted as put
					removed++
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	x.count.removed.Add(uint64(removed))
	return next, err
}

// isDead reports whether an entry is of a segment that is gone, or a stray whose
// name is gone or is that of another block. Links never are: they go with the name
// they lead to.
func (r *reader) isDead(kind byte, key, value []byte) (bool, error) {
	alive := r.engine.segments.alive
	switch {
	case kind == kindBlock:
		rec, err := decodeBlockRecord(value)
		return err == nil && !alive(rec.place.segment), err
	case kind == kindStray:
		half, name, err := decodeStrayKey(key)
		if err != nil {
			return false, err
		}
		f, err := r.search(name)
		if err != nil || !f.found {
			return err == nil, err
		}
		rec, err := decodeNameRecord(f.value)
		return err == nil && (rec.flags&flagDropped != 0 || [16]byte(rec.id[:]) != half || !alive(rec.segment)), err
	case isLink(value):
		return false, nil
	}
	rec, err := decodeNameRecord(value)
	return err == nil && !alive(rec.segment), err
}

// remove plans that a dead entry is gone, and the link to it.
func (p *planner) remove(kind byte, key, value []byte) error {
	p.draft.Delete(key)
	if kind != kindName {
		return nil
	}
	rec, err := decodeNameRecord(value)
	if err != nil {
		return err
	}
	f, err := p.reader.search(rec.key)
	if err != nil || !f.found || !f.linked {
		return err
	}
	if at, err := decodeNameKey(key); err != nil || f.at != at {
		return err
	}
	p.delete(spot{rec.key, alone})
	return nil
}
