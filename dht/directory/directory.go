package directory

import (
	"hash/maphash"
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

const (
	// keepTombstone is how long a deleted name is remembered: statements that
	// were on their way when it was deleted are older than that.
	keepTombstone = time.Minute

	// shards share the table, so that a walk through all of it never holds up
	// others for long.
	shards = 64

	// MaxCopies is how many copies of a block Lookup returns: with those in
	// memory first, more would hardly be tried.
	MaxCopies = 3
)

// Directory is the table of the names whose home is here. All methods are safe
// for concurrent use; time is what callers say it is.
type Directory struct {
	seed   maphash.Seed
	shards [shards]shard
}

type shard struct {
	mu      sync.Mutex
	entries map[key]*entry
	tombs   []tombstone // oldest first
	words   words
}

type key struct{ namespace, name string }

type tombstone struct {
	key   key
	until time.Time
}

// Stale is for an owner whose copy of a name is out of date.
type Stale struct {
	Owner     fabric.Rank
	Namespace string
	Key       string
	Before    uint64 // puts stamped below this are gone
}

// Found is the result of Lookup for a name.
type Found struct {
	Copies []Statement // 1 to MaxCopies, all of the same bytes; those in memory first, of Contents last
}

// New returns an empty directory.
func New() *Directory {
	d := &Directory{seed: maphash.MakeSeed()}
	for i := range d.shards {
		d.shards[i].entries = map[key]*entry{}
	}
	return d
}

// lock returns the shard of a name, locked.
func (d *Directory) lock(k key) *shard {
	sh := &d.shards[maphash.String(d.seed, k.name)%shards]
	sh.mu.Lock()
	return sh
}

// Apply takes in a statement and returns the owners that are now known to be
// out of date, the speaker among them if its put was deleted or replaced. They
// are returned again each time until they have withdrawn it. The directory
// keeps the statement's strings and pointers.
func (d *Directory) Apply(s Statement) []Stale {
	k := key{s.Name.Namespace, s.Name.Key}
	sh := d.lock(k)
	defer sh.mu.Unlock()
	e := sh.entries[k]
	if e == nil {
		if !s.Has() {
			return nil
		}
		k.namespace = sh.words.one(k.namespace)
		e = &entry{}
		sh.entries[k] = e
	}
	sh.words.share(&s)
	e.replaced(&s)
	e.set(s)
	stale := e.judge(k)
	sh.prune(k, e)
	return stale
}

func (sh *shard) prune(k key, e *entry) {
	if e.empty() {
		delete(sh.entries, k)
	}
}

// Lookup returns the copies of a name; false when there is none that has not
// expired at now. The result is the caller's, what it points to is read-only.
func (d *Directory) Lookup(namespace, name string, now time.Time) (Found, bool) {
	k := key{namespace, name}
	sh := d.lock(k)
	defer sh.mu.Unlock()
	e := sh.entries[k]
	if e == nil {
		return Found{}, false
	}
	best := e.newest()
	if best == nil || best.expired(now) {
		return Found{}, false
	}
	return Found{e.copies(best, namespace == Contents)}, true
}

// Delete deletes a name: puts stamped up to stamp, and up to the newest known
// here, are gone and may not come back. It returns the owners to notify.
func (d *Directory) Delete(namespace, name string, stamp uint64, now time.Time) []Stale {
	k := key{namespace, name}
	sh := d.lock(k)
	defer sh.mu.Unlock()
	e := sh.entries[k]
	if e == nil {
		e = &entry{}
		sh.entries[k] = e
	}
	for i := range e.records {
		stamp = max(stamp, e.records[i].Name.Seq)
	}
	e.buried, e.until = max(e.buried, stamp+1), now.Add(keepTombstone)
	for i := range e.records {
		e.records[i].before = max(e.records[i].before, e.buried)
	}
	sh.tombs = append(sh.tombs, tombstone{k, e.until})
	return e.judge(k)
}

// Sweep forgets tombstones whose time is over. The owner calls it about once a
// second.
func (d *Directory) Sweep(now time.Time) {
	for i := range d.shards {
		d.shards[i].sweep(now)
	}
}

func (sh *shard) sweep(now time.Time) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for len(sh.tombs) > 0 && !now.Before(sh.tombs[0].until) {
		t := sh.tombs[0]
		sh.tombs = sh.tombs[1:]
		// A name that was buried again, or cleared meanwhile, has another time.
		if e := sh.entries[t.key]; e != nil && e.buried > 0 && !e.until.After(t.until) {
			e.buried = 0
			sh.prune(t.key, e)
		}
	}
	if len(sh.tombs) == 0 {
		sh.tombs = nil
	}
}

// Lost forgets the copies in memory of ranks' incarnations up to the given
// ones: those processes are dead. Their copies in the shared file system stay.
func (d *Directory) Lost(incarnations map[fabric.Rank]uint64) {
	d.walk(func(_ key, e *entry) bool {
		changed := false
		for i := range e.records {
			r := &e.records[i]
			if last, dead := incarnations[r.Owner]; dead && r.Incarnation <= last {
				r.dead, changed = true, changed || r.Memory != nil
				r.Memory = nil
			}
		}
		return !changed || !e.empty()
	})
}

// walk goes through all entries and forgets those for which keep is false.
func (d *Directory) walk(keep func(key, *entry) bool) (dropped int) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		for k, e := range sh.entries {
			if !keep(k, e) {
				delete(sh.entries, k)
				dropped++
			}
		}
		sh.mu.Unlock()
	}
	return dropped
}

// Invalidate takes back those copies of a statement that s has no more of: a reader
// found them wrong. What the owner stated since then stays.
func (d *Directory) Invalidate(s Statement) {
	k := key{s.Name.Namespace, s.Name.Key}
	sh := d.lock(k)
	defer sh.mu.Unlock()
	e := sh.entries[k]
	if e == nil {
		return
	}
	for i := range e.records {
		r := &e.records[i]
		if r.Owner != s.Owner || r.Incarnation != s.Incarnation || r.Version != s.Version {
			continue
		}
		if s.Memory == nil {
			r.Memory = nil
		}
		if s.Segment == nil {
			r.Segment = nil
		}
	}
	sh.prune(k, e)
}

// Keep forgets the names for which keep is false: their home is elsewhere now.
// keep must not call the directory.
func (d *Directory) Keep(keep func(namespace, name string) bool) (dropped int) {
	return d.walk(func(k key, _ *entry) bool { return keep(k.namespace, k.name) })
}

// Clear forgets all names of a namespace, or of all of them. Contents stay: owners withdraw
// what they do not keep any more.
func (d *Directory) Clear(namespace string, all bool) {
	d.Keep(func(ns, _ string) bool { return ns == Contents || !all && ns != namespace })
}

// Each calls fn for a copy of every statement about a copy which may be
// served, until fn returns false. It holds locks of the directory: fn must not
// call it.
func (d *Directory) Each(fn func(Statement) bool) {
	more := true
	d.walk(func(_ key, e *entry) bool {
		for i := range e.records {
			if more && e.records[i].live() {
				more = fn(e.records[i].Statement)
			}
		}
		return true
	})
}

// Len is the number of names, deleted ones included while they are remembered.
func (d *Directory) Len() (n int) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		n += len(sh.entries)
		sh.mu.Unlock()
	}
	return n
}
