package directory

import (
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

// keepTombstone is how long a deleted name is remembered: statements that were
// on their way when it was deleted are older than that.
const keepTombstone = time.Minute

// Directory is the table of the names whose home is here. All methods are safe
// for concurrent use; time is what callers say it is.
type Directory struct {
	mu      sync.Mutex
	entries map[key]*entry
	tombs   []tombstone // oldest first
}

type key struct{ namespace, name string }

// entry is what is known of one name. said is small: a name has few owners.
type entry struct {
	said   []Statement // at most one for each owner
	buried uint64      // tombstone: puts stamped below this are gone
}

type tombstone struct {
	key   key
	until time.Time
}

// Stale tells an owner that its copy of a name is out of date.
type Stale struct {
	Owner     fabric.Rank
	Namespace string
	Key       string
	Before    uint64 // puts stamped below this are gone
}

// Found is what Lookup tells of a name.
type Found struct {
	Copies []Statement // all of the same bytes; those in memory first
}

// New returns an empty directory.
func New() *Directory { return &Directory{entries: map[key]*entry{}} }

// Apply takes in a statement and returns the owners that are now known to be
// out of date, the speaker among them if its put was deleted or replaced. The
// directory keeps the statement's strings and pointers.
func (d *Directory) Apply(s Statement) []Stale {
	k := key{s.Name.Namespace, s.Name.Key}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[k]
	if e == nil {
		if !s.Has() {
			return nil
		}
		e = &entry{}
		d.entries[k] = e
	}
	e.set(s)
	stale := e.stale(k)
	d.prune(k, e)
	return stale
}

// set replaces what the owner said before, unless that is newer. A statement
// without a copy is kept as long as others have one: it stops older ones that
// are still on their way.
func (e *entry) set(s Statement) {
	for i := range e.said {
		old := &e.said[i]
		if old.Owner != s.Owner {
			continue
		}
		if old.Version < s.Version {
			*old = s
		}
		return
	}
	e.said = append(e.said, s)
}

// newest returns the statement of the newest put that has a copy, nil for none.
func (e *entry) newest() *Statement {
	var best *Statement
	for i := range e.said {
		s := &e.said[i]
		if s.Has() && s.Name.Seq >= e.buried && (best == nil || s.Name.Seq > best.Name.Seq ||
			s.Name.Seq == best.Name.Seq && s.Owner < best.Owner) {
			best = s
		}
	}
	return best
}

// stale lists the owners whose copy is of a deleted or replaced put.
func (e *entry) stale(k key) (out []Stale) {
	best := e.newest()
	for i := range e.said {
		s := &e.said[i]
		before := e.buried
		if best != nil && s != best && best.contradicts(s) {
			before = max(before, best.Name.Seq)
			if s.Name.Seq == best.Name.Seq {
				before++ // two puts in one tick: the lower rank's stays
			}
		}
		if s.Has() && s.Name.Seq < before {
			out = append(out, Stale{Owner: s.Owner, Namespace: k.namespace, Key: k.name, Before: before})
		}
	}
	return out
}

// prune forgets a name nobody has and nobody deleted lately.
func (d *Directory) prune(k key, e *entry) {
	if e.buried > 0 {
		return
	}
	for i := range e.said {
		if e.said[i].Has() {
			return
		}
	}
	delete(d.entries, k)
}

// Lookup returns the copies of a name; false when there is none that has not
// expired at now. The result is the caller's, what it points to is read-only.
func (d *Directory) Lookup(namespace, name string, now time.Time) (Found, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[key{namespace, name}]
	if e == nil {
		return Found{}, false
	}
	best := e.newest()
	if best == nil || best.expired(now) {
		return Found{}, false
	}
	var f Found
	for i := range e.said {
		if s := &e.said[i]; s.Memory != nil && s.Name.Seq >= e.buried && best.agrees(s) {
			f.Copies = append(f.Copies, *s)
		}
	}
	for i := range e.said {
		if s := &e.said[i]; s.Memory == nil && s.Segment != nil && s.Name.Seq >= e.buried && best.agrees(s) {
			f.Copies = append(f.Copies, *s)
		}
	}
	return f, true
}

// Bury deletes a name: puts stamped up to stamp, and up to the newest known
// here, are gone and may not come back. It returns the owners to tell.
func (d *Directory) Bury(namespace, name string, stamp uint64, now time.Time) []Stale {
	k := key{namespace, name}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[k]
	if e == nil {
		e = &entry{}
		d.entries[k] = e
	}
	for i := range e.said {
		stamp = max(stamp, e.said[i].Name.Seq)
	}
	e.buried = max(e.buried, stamp+1)
	d.tombs = append(d.tombs, tombstone{k, now.Add(keepTombstone)})
	return e.stale(k)
}

// Sweep forgets tombstones whose time is over. The owner calls it about once a
// second.
func (d *Directory) Sweep(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := 0
	for ; i < len(d.tombs) && !now.Before(d.tombs[i].until); i++ {
		k := d.tombs[i].key
		if e := d.entries[k]; e != nil && !d.buriedAgain(k, i+1) {
			e.buried = 0
			d.prune(k, e)
		}
	}
	d.tombs = append(d.tombs[:0:0], d.tombs[i:]...)
}

func (d *Directory) buriedAgain(k key, from int) bool {
	for _, t := range d.tombs[from:] {
		if t.key == k {
			return true
		}
	}
	return false
}

// Lost forgets the copies in memory of a rank's incarnations up to the given
// one: the process is dead. Its copies in the shared file system stay.
func (d *Directory) Lost(rank fabric.Rank, incarnation uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, e := range d.entries {
		for i := range e.said {
			if s := &e.said[i]; s.Owner == rank && s.Incarnation <= incarnation {
				s.Memory = nil
			}
		}
		d.prune(k, e)
	}
}

// Refute takes back one copy of a statement that a reader found wrong. What
// the owner said since then stays.
func (d *Directory) Refute(s Statement) {
	k := key{s.Name.Namespace, s.Name.Key}
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[k]
	if e == nil {
		return
	}
	for i := range e.said {
		if old := &e.said[i]; old.Owner == s.Owner && old.Version == s.Version {
			old.Memory, old.Segment = s.Memory, s.Segment
		}
	}
	d.prune(k, e)
}

// Keep forgets the names for which keep is false: their home is elsewhere now.
// keep must not call the directory.
func (d *Directory) Keep(keep func(namespace, name string) bool) (dropped int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.entries {
		if !keep(k.namespace, k.name) {
			delete(d.entries, k)
			dropped++
		}
	}
	return dropped
}

// Clear forgets all names of a namespace, or of all of them.
func (d *Directory) Clear(namespace string, all bool) {
	d.Keep(func(ns, _ string) bool { return !all && ns != namespace })
}

// Each calls fn for a copy of every statement that tells of a copy, until fn
// returns false. It holds the directory's lock: fn must not call it.
func (d *Directory) Each(fn func(Statement) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		for _, s := range e.said {
			if s.Has() && !fn(s) {
				return
			}
		}
	}
}

// Len is the number of names.
func (d *Directory) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.entries)
}
