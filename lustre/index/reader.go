package index

import (
	"bytes"

	"github.com/cockroachdb/pebble/v2"

	"cascadekv/internal/block"
)

// reader finds names and blocks in one view of the database. It is used by one
// goroutine at a time. Finding the names of a chain one after the other goes
// from key to key.
type reader struct {
	engine  *engine
	version uint64

	chain *pebble.Iterator // where the last name lies
	side  *pebble.Iterator // so that looking up a block does not move chain

	at  spot // of the name that chain stands on
	on  bool // at is true
	key [33]byte

	trail trail // of the names found, for those that count
}

// trail is how names were found: by searches, and by steps from one to the next.
type trail struct {
	walk                            uint64 // entries found since the last search, it included
	points, ranges, scanned, absent uint64 // as in Stats
}

// search notes a search by the key.
func (t *trail) search(found bool) {
	t.end()
	if !found {
		t.absent++
		return
	}
	t.walk = 1
}

// end completes what the last search began.
func (t *trail) end() {
	switch {
	case t.walk == 1:
		t.points++
	case t.walk > 1:
		t.ranges++
		t.scanned += t.walk
	}
	t.walk = 0
}

// open makes an iterator on its first use. Filters of the lowest level are not
// used unless asked for, and most of all keys lie there.
func (r *reader) open(it **pebble.Iterator) error {
	if *it != nil {
		return nil
	}
	var err error
	*it, err = r.engine.db.NewIter(&pebble.IterOptions{UseL6Filters: true})
	return err
}

func (r *reader) close() {
	for _, it := range []*pebble.Iterator{r.chain, r.side} {
		if it != nil {
			it.Close() // its error was seen when it was read
		}
	}
}

// found is the answer to where a name is. The value dies with the next call.
type found struct {
	at     spot
	value  []byte // a nameRecord, with found
	found  bool
	linked bool // the name has a link, be it to where another name lies
	bare   bool // no record, no link, and no run called after the name
}

// name finds the record of k, in the order of cost: at the next key, where k
// began a run, where its link leads.
func (r *reader) name(k Key) (found, error) {
	if r.on && r.chain.Next() {
		next := spot{r.at.run, r.at.pos + 1}
		value, err := r.chain.ValueAndErr()
		if err != nil {
			return found{}, err
		}
		if names(value, k) && bytes.Equal(r.chain.Key(), appendNameKey(r.key[:0], next)) {
			r.at = next
			r.trail.walk++
			return found{at: next, value: value, found: true}, nil
		}
	}
	f, err := r.search(k)
	r.trail.search(f.found)
	return f, err
}

// search finds k without regard to where the reader stands.
func (r *reader) search(k Key) (f found, err error) {
	r.on = false
	if err := r.open(&r.chain); err != nil {
		return f, err
	}
	if !r.chain.SeekPrefixGE(appendRun(r.key[:0], k)) {
		f.bare = true
		return f, r.chain.Error()
	}
	if f.at, err = decodeNameKey(r.chain.Key()); err != nil {
		return f, err
	}
	if f.value, err = r.chain.ValueAndErr(); err != nil {
		return f, err
	}
	if isLink(f.value) {
		f.linked = true
		if f.at, err = decodeLink(f.value); err != nil {
			return f, err
		}
		if !r.chain.SeekPrefixGE(appendNameKey(r.key[:0], f.at)) {
			return f, r.chain.Error()
		}
		if !bytes.Equal(r.chain.Key(), appendNameKey(r.key[:0], f.at)) {
			return f, nil
		}
		if f.value, err = r.chain.ValueAndErr(); err != nil {
			return f, err
		}
	}
	f.found = names(f.value, k)
	r.at, r.on = f.at, f.found && f.at.pos != alone
	return f, nil
}

// block finds the record of a block.
func (r *reader) block(id block.ID) (rec blockRecord, found bool, err error) {
	value, found, err := r.get(appendBlockKey(r.key[:0], id))
	if found {
		rec, err = decodeBlockRecord(value)
	}
	return rec, found, err
}

// get finds one key; the value dies with the next call.
func (r *reader) get(key []byte) (value []byte, found bool, err error) {
	if err := r.open(&r.side); err != nil {
		return nil, false, err
	}
	if !r.side.SeekPrefixGE(key) || !bytes.Equal(r.side.Key(), key) {
		return nil, false, r.side.Error()
	}
	value, err = r.side.ValueAndErr()
	return value, err == nil, err
}
