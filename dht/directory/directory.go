package directory

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

const (
	// keepTombstone is how long a name that was deleted, or has ended, is remembered:
	// statements that were on their way then are older than that.
	keepTombstone = time.Minute

	// deletedAtOnce is how much later than a deletion a put may be stamped and be deleted
	// all the same, if it was stated here before: clocks differ. It is less than whoever
	// deletes waits for an answer: what was put after that stays, however late the message is.
	deletedAtOnce = 250 * time.Millisecond

	// shards share the table, so that a walk through all of it never holds up
	// others for long.
	shards = 64

	// MaxLonger bounds the tombstones that are kept for longer than that.
	MaxLonger = 1 << 16

	// MaxCopies is how many copies of a block Lookup returns: with those in
	// memory first, more would hardly be tried.
	MaxCopies = 3
)

// Directory is the table of the names whose home is here. All methods are safe
// for concurrent use; time is what callers say it is.
type Directory struct {
	seed   maphash.Seed
	words  *words
	shards [shards]shard
	fates  fates
}

// shard has its entries packed: a method unpacks one, and packs it again if it changed.
type shard struct {
	dir *Directory

	mu      sync.Mutex
	entries table
	tombs   []tombstone // oldest first
	packer  packer
	now     unpacked
}

// unpacked is the entry that a method works on. It is used again by the next one.
type unpacked struct {
	entry
	key    key
	hash   uint32   // of the key
	slot   int      // where it is, -1: nowhere
	packed []byte   // what is behind the key there
	used   []uint32 // words that it uses there
	places []place  // what its records point to
}

type place struct {
	memory  Memory
	segment Segment
}

// maxReused is how many records an unpacked entry keeps the room of.
const maxReused = 256

type key struct{ namespace, name string }

type tombstone struct {
	key   key
	until int64 // Unix nanoseconds
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
	d := &Directory{seed: maphash.MakeSeed(), words: newWords(), fates: newFates()}
	for i := range d.shards {
		d.shards[i].dir, d.shards[i].packer.words = d, d.words
	}
	return d
}

// find locks the shard of a name, and unpacks the entry.
func (d *Directory) find(k key) (*shard, *unpacked) {
	h := d.hash(k)
	sh := &d.shards[h%shards]
	sh.mu.Lock()
	return sh, sh.find(k, uint32(h>>32))
}

func (d *Directory) hash(k key) uint64 {
	return maphash.String(d.seed, k.name) ^ maphash.String(d.seed, k.namespace)*3
}

// find unpacks the entry of a key, which is empty if there is none.
func (sh *shard) find(k key, hash uint32) *unpacked {
	e := &sh.now
	e.key, e.hash, e.slot, e.used = k, hash, -1, e.used[:0]
	if t := &sh.entries; t.taken > 0 {
		for i := t.first(hash); t.slots[i].ref != 0 && e.slot < 0; i = t.next(i) {
			if t.slots[i].hash == hash && sh.is(k, t.item(t.slots[i].ref)) {
				e.slot = i
			}
		}
	}
	sh.unpack()
	return e
}

// is reports whether an item is the entry of a key; then what is behind that is packed.
func (sh *shard) is(k key, item []byte) bool {
	u := unpacker{item}
	word := uint32(u.number())
	if sh.dir.words.of(word) != k.namespace || !u.isText(k.name) {
		return false
	}
	sh.now.packed, sh.now.used = u.b, append(sh.now.used[:0], word)
	return true
}

// unpack unpacks what is packed of the entry.
func (sh *shard) unpack() {
	e := &sh.now
	if cap(e.records) > maxReused {
		e.records, e.places = nil, nil
	}
	e.entry = entry{records: e.records[:0]}
	if e.slot >= 0 {
		sh.packer.unpack(e)
	}
}

// at unpacks the entry of slot i.
func (sh *shard) at(i int) *unpacked {
	e, s := &sh.now, sh.entries.slots[i]
	item := sh.entries.item(s.ref)
	e.key, e.hash, e.slot = sh.keyOf(item), s.hash, i
	sh.is(e.key, item)
	sh.unpack()
	return e
}

// keyOf unpacks the key of an item.
func (sh *shard) keyOf(item []byte) key {
	u := unpacker{item}
	namespace := sh.dir.words.of(uint32(u.number()))
	sh.packer.text = u.text(sh.packer.text[:0])
	return key{namespace, string(sh.packer.text)}
}

// put keeps the entry as it is now, unless nothing is left to remember.
func (sh *shard) put() {
	e, p := &sh.now, &sh.packer
	if e.empty() {
		sh.drop()
		return
	}
	p.pack(e.key, &e.entry)
	if !sh.entries.put(e.slot, e.hash, p.b) { // there is no room: a miss is allowed
		sh.dir.words.release(p.used)
		sh.drop()
		return
	}
	sh.dir.words.release(e.used)
}

// drop forgets the entry.
func (sh *shard) drop() {
	if e := &sh.now; e.slot >= 0 {
		sh.entries.delete(e.slot)
		sh.dir.words.release(e.used)
	}
}

// tidy gives back what entries do not use any more.
func (sh *shard) tidy() {
	sh.entries.tidy(func(item []byte) uint32 { return uint32(sh.dir.hash(sh.keyOf(item)) >> 32) })
}

// Apply takes in a statement and returns the owners that are now known to be
// out of date, the speaker among them if its put was deleted or replaced. They
// are returned again each time until they have withdrawn it. The directory
// keeps nothing that the statement points to.
func (d *Directory) Apply(s Statement, now time.Time) []Stale {
	sh, e := d.find(key{s.Name.Namespace, s.Name.Key})
	defer sh.mu.Unlock()
	if e.slot < 0 && !s.Has() && !s.ended() {
		return nil
	}
	e.replaced(&s)
	if s.ended() && s.Name.Seq > e.buried {
		sh.deleteBelow(s.Name.Seq, now)
	}
	e.set(s)
	stale := e.judge(e.key)
	sh.put()
	sh.tidy()
	return stale
}

// Lookup returns the copies of a name; false when there is none that has not
// expired at now. The result is the caller's, what it points to is read-only.
func (d *Directory) Lookup(namespace, name string, now time.Time) (Found, bool) {
	sh, e := d.find(key{namespace, name})
	defer sh.mu.Unlock()
	best := e.newest()
	if best == nil || best.expired(now) {
		return Found{}, false
	}
	return Found{e.copies(best, namespace == Contents)}, true
}

// Delete deletes a name: puts stamped up to stamp, and up to the newest known
// here that is not stamped much later (deletedAtOnce), are gone and may not come
// back. It returns the owners to notify.
func (d *Directory) Delete(namespace, name string, stamp uint64, now time.Time) []Stale {
	sh, e := d.find(key{namespace, name})
	defer sh.mu.Unlock()
	last := stamp
	for i := range e.records {
		if seq := e.records[i].Name.Seq; seq < stamp+uint64(deletedAtOnce) {
			last = max(last, seq)
		}
	}
	sh.deleteBelow(max(e.buried, last+1), now)
	stale := e.judge(e.key)
	sh.put()
	sh.tidy()
	return stale
}

// deleteBelow gives the entry a tombstone: puts stamped below are gone.
func (sh *shard) deleteBelow(below uint64, now time.Time) {
	e := &sh.now
	e.deleteBelow(below, now)
	sh.tombs = append(sh.tombs, tombstone{e.key, e.until})
}

// Sweep forgets tombstones whose time has been over for longer, but for those that hide what an
// owner has not withdrawn. Of those whose time is over it keeps MaxLonger about. The owner calls it about
// once a second.
func (d *Directory) Sweep(now time.Time, longer time.Duration) {
	for i := range d.shards {
		d.shards[i].sweep(now.UnixNano(), int64(longer))
	}
}

func (sh *shard) sweep(now, longer int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.tombs) == 0 {
		return
	}
	for len(sh.tombs) > 0 && (sh.tombs[0].until <= now-longer || sh.tombs[0].until <= now && len(sh.tombs) > MaxLonger/shards) {
		t := sh.tombs[0]
		sh.tombs = sh.tombs[1:]
		e := sh.find(t.key, uint32(sh.dir.hash(t.key)>>32))
		// A name that was buried again, or cleared meanwhile, has another time.
		if e.buried > 0 && e.until <= t.until {
			e.over()
			sh.put()
		}
	}
	if len(sh.tombs) == 0 {
		sh.tombs = nil
	}
	sh.tidy()
}

// Lost forgets the copies in memory of ranks' incarnations up to the given
// ones: those processes are dead. Their copies in the shared file system stay.
func (d *Directory) Lost(incarnations map[fabric.Rank]uint64) {
	d.walk(func(sh *shard, e *unpacked) {
		changed, had, owner := false, e.newest() != nil, fabric.Rank(0)
		for i := range e.records {
			r := &e.records[i]
			if last, dead := incarnations[r.Owner]; dead && r.Incarnation <= last {
				if r.Memory != nil {
					owner = r.Owner
				}
				changed = changed || !r.dead || r.Memory != nil
				r.dead, r.Memory = true, nil
			}
		}
		if had && e.newest() == nil {
			d.fates.add(d.hash(e.key), owner)
		}
		if changed {
			sh.put()
		}
	})
}

// walk calls fn for all entries, which may put or drop them. It calls it twice for few
// of them.
func (d *Directory) walk(fn func(*shard, *unpacked)) {
	for i := range d.shards {
		d.shards[i].walk(fn)
	}
}

func (sh *shard) walk(fn func(*shard, *unpacked)) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := &sh.entries
	for i := 0; i < len(t.slots); {
		if t.slots[i].ref == 0 {
			i++
			continue
		}
		e, taken := sh.at(i), t.taken
		if fn(sh, e); t.taken == taken { // or else another entry may have the slot
			i++
		}
	}
	sh.tidy()
}

// Invalidate takes back those copies of a statement that s has no more of: a reader
// found them wrong. What the owner stated since then stays.
func (d *Directory) Invalidate(s Statement) {
	sh, e := d.find(key{s.Name.Namespace, s.Name.Key})
	defer sh.mu.Unlock()
	if e.slot < 0 {
		return
	}
	for i := range e.records {
		r := &e.records[i]
		if r.Owner == s.Owner && r.Incarnation == s.Incarnation && r.Version == s.Version {
			r.invalidate(&s)
		}
	}
	sh.put()
	sh.tidy()
}

// Keep forgets the names for which keep is false: their home is elsewhere now.
// keep must not call the directory.
func (d *Directory) Keep(keep func(namespace, name string) bool) (dropped int) {
	d.walk(func(sh *shard, e *unpacked) {
		if !keep(e.key.namespace, e.key.name) {
			sh.drop()
			dropped++
		}
	})
	return dropped
}

// Clear forgets the names of a namespace, or of all of them, whose last change known here is
// stamped below before. Contents stay: owners withdraw what they do not keep any more.
func (d *Directory) Clear(namespace string, all bool, before uint64) {
	d.walk(func(sh *shard, e *unpacked) {
		ns := e.key.namespace
		newer := e.buried >= before || slices.ContainsFunc(e.records, func(r record) bool { return r.Name.Seq >= before })
		if ns != Contents && (all || ns == namespace) && !newer {
			sh.drop()
		}
	})
}

// Each calls fn for every statement about a copy which may be served, until fn returns
// false. It holds locks of the directory: fn must not call it.
func (d *Directory) Each(fn func(Statement) bool) {
	more := true
	d.walk(func(_ *shard, e *unpacked) {
		for i := range e.records {
			if more && e.records[i].live() {
				more = fn(handOut(&e.records[i].Statement)[0])
			}
		}
	})
}

// EachDeleted calls fn for every name that has a tombstone, with the stamp below which puts are gone. It
// holds locks of the directory: fn must not call it.
func (d *Directory) EachDeleted(fn func(namespace, name string, below uint64)) {
	d.walk(func(_ *shard, e *unpacked) {
		if e.buried > 0 {
			fn(e.key.namespace, e.key.name, e.buried)
		}
	})
}

// Len is the number of names, deleted ones included while they are remembered.
func (d *Directory) Len() (n int) {
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		n += sh.entries.taken
		sh.mu.Unlock()
	}
	return n
}
