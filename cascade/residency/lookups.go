package residency

import (
	"cascadekv/internal/block"
	"math"
	"time"
)

// What an engine looks up by one PROBE is a request, and says more of it than the gets and
// puts that follow: which blocks it asks for that are not here, and how long it is. With the
// first block that it then gets or puts, all of it is passed to the policies as asked for, and
// its gets count no second time. A look-up that no get or put follows, such as a router's, is
// no use of anything.

const (
	lookupsKept = 1 << 10 // look-ups that are remembered
	lookupSlots = 1 << 16 // keys of all of them, about
	lookupBytes = 8 << 20 // of the keys of all of them, as keyBytes has them

	// lookupFor is how long a get or put may come after the look-up: a prompt may be computed
	// between them.
	lookupFor = time.Minute
)

// lookups are the chains that were looked up last. Guarded by State.Mu.
type lookups struct {
	kept  []lookup     // by number, modulo lookupsKept
	slots []lookupSlot // by fingerprint, modulo lookupSlots: the last that came has it
	last  uint32       // number
	first uint32       // number of the oldest that may have keys
	bytes int
}

// lookup is one chain.
type lookup struct {
	number uint32
	bytes  int
	keys   []string // head first, "" for one of which the fingerprint alone is known; nil once it was passed
	prints []uint64 // fingerprints, in parallel
	hint   Hint     // of what the request declares
	at     time.Time
}

type lookupSlot struct {
	number uint32 // of the look-up, 0: none
	print  uint32 // upper half of the fingerprint
}

// keyBytes is what keys take, whatever their number.
func keyBytes(keys []string) (n int) {
	for _, key := range keys {
		n += len(key) + 16 + 8
	}
	return n
}

// LookedUp records that the keys of one chain, head first, were looked up, what was declared of it, and which
// of them were found, by their places. The keys are kept, and must not be changed; of a long chain the first
// LookStep are those of a request.
func (q *Requests) LookedUp(ns string, keys []string, h Hint, found func(i int) bool) {
	prints, now := block.Fingerprints(ns, keys...), q.state.Now()
	q.NoteMissing(now, ns, prints, found)
	q.state.Mu.Lock()
	defer q.state.Mu.Unlock()
	q.AddLookupLocked(now, keys, prints, h)
}

// IsRequest reports whether a look-up of each of some keys, so many of which are missing, says more
// than the gets and puts that follow: a chain that is all here is passed to the policies as it is got.
func IsRequest(keys, missing int) bool { return keys > 1 && missing > 0 }

// AddLookupLocked records a look-up of some time ago: keys and, in parallel, their fingerprints, which
// may be all that is known of a key, "", that was not found. Both are kept.
func (q *Requests) AddLookupLocked(at time.Time, keys []string, prints []uint64, h Hint) {
	q.state.Mu.AssertHeld()
	n := min(len(keys), LookStep)
	q.lookups.add(lookup{bytes: keyBytes(keys), keys: keys[:n], prints: prints[:n], hint: h, at: at}) // bytes of all: they may be parts of one text
}

// NoteMissing has it learned how long it takes until what was not found of some keys, by their
// fingerprints in order, is put. It needs no mutex.
func (q *Requests) NoteMissing(at time.Time, ns string, prints []uint64, found func(i int) bool) {
	if len(ns) > block.MaxKey { // nothing can be put there, and who asks may name any
		return
	}
	var missing []uint64
	for i, p := range prints {
		if !found(i) {
			missing = append(missing, p)
		}
	}
	q.Prefills.Missed(q.state.Age(at), ns, missing)
}

func (l *lookups) add(one lookup) {
	if l.last == math.MaxUint32 {
		*l = lookups{}
	}
	if l.kept == nil {
		l.kept, l.slots = make([]lookup, lookupsKept), make([]lookupSlot, lookupSlots)
		l.first = 1
	}
	l.last++
	one.number = l.last
	for ; l.first < l.last && (l.bytes+one.bytes > lookupBytes || l.last-l.first >= lookupsKept); l.first++ {
		oldest := &l.kept[l.first%lookupsKept]
		l.drop(oldest)
		*oldest = lookup{}
	}
	if one.bytes > lookupBytes {
		return
	}
	l.kept[one.number%lookupsKept] = one
	l.bytes += one.bytes
	for _, p := range one.prints {
		l.slots[p%lookupSlots] = lookupSlot{one.number, uint32(p >> 32)}
	}
}

// drop lets the keys of a look-up go.
func (l *lookups) drop(one *lookup) {
	l.bytes -= one.bytes
	one.bytes, one.keys, one.prints = 0, nil, nil
}

// take takes the look-up of which a block is part, by its fingerprint, from the block; nil: none.
func (l *lookups) take(print uint64) *lookup {
	if l.kept == nil {
		return nil
	}
	slot := &l.slots[print%lookupSlots]
	number := slot.number
	if number == 0 || slot.print != uint32(print>>32) {
		return nil
	}
	*slot = lookupSlot{}
	if one := &l.kept[number%lookupsKept]; one.number == number {
		return one
	}
	return nil
}

// BeginLocked takes in what clients have looked up and read by themselves, before a get, a put or an
// eviction, and returns how many keys LookedLocked may pass for it before the mutex is released.
func (q *Requests) BeginLocked() (left int) {
	q.state.Mu.AssertHeld()
	if q.CatchUpLocked != nil {
		q.CatchUpLocked()
	}
	return LookStep
}

// LookedLocked reports whether a block that is got, or is about to be put, is part of a request
// that was passed to the policies, or is passed now, because it was looked up. left is how many keys
// may be passed before the mutex is released: beyond that a look-up is forgotten.
func (q *Requests) LookedLocked(ns, key string, left *int) bool {
	if q.lookups.kept == nil {
		return false
	}
	return q.LookedPrintLocked(ns, block.Fingerprint(ns, key), left)
}

// LookedPrintLocked is LookedLocked of a key of which the fingerprint is known.
func (q *Requests) LookedPrintLocked(ns string, print uint64, left *int) bool {
	q.state.Mu.AssertHeld()
	one := q.lookups.take(print)
	if one == nil || q.state.Now().Sub(one.at) > lookupFor {
		return false
	}
	keys, prints := one.keys, one.prints
	q.lookups.drop(one)
	if *left -= len(keys); *left < 0 {
		return false
	}
	if len(keys) > 0 {
		q.chains, q.gathered = q.gathered, q.chains // one that has begun goes on
		for i, key := range keys {
			if n := VisibleLocked(q.state, ns, key); n != nil {
				q.AddLocked(BlockOf(n))
			} else {
				q.AddMissLocked(prints[i])
			}
		}
		q.passLocked(one.hint, true)
		q.chains, q.gathered = q.gathered, q.chains
	}
	return true
}
