package inference

import (
	"sync"

	"github.com/cespare/xxhash/v2"
)

// MaxKeys bounds the keys that are remembered; one of more than MaxKey bytes comes before
// nothing.
const (
	MaxKeys = 1 << 15
	MaxKey  = 256
)

// Orders remembers, of keys seen lately, which key came before each. The zero value
// remembers none. It is safe for concurrent use.
type Orders struct {
	mu struct {
		sync.Mutex
		seen []seen // nil, or MaxKeys: a key is at its fingerprint, or another one that came later
	}
}

// seen is a key that was in a request.
type seen struct {
	key, before uint64 // fingerprints; before is 0 for what only headed requests
	parent      string
	asked       bool // and not only put, together
	refuted     bool
}

// Text is a key as requests have it.
type Text interface{ string | []byte }

// Asked records keys that were asked for together and reports whether their order was
// new. Keys are only read.
func Asked[K Text](o *Orders, ns string, keys []K) (news bool) { return take(o, ns, keys, true) }

// Put is Asked for keys that were put together. They may be of several chains, so what
// was asked counts for more: of a key that was asked for nothing is concluded from it.
func Put[K Text](o *Orders, ns string, keys []K) (news bool) { return take(o, ns, keys, false) }

func take[K Text](o *Orders, ns string, keys []K, asked bool) (news bool) {
	n := len(keys)
	if n < 2 {
		return false
	}
	space := spaceOf(ns)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.seen == nil {
		o.mu.seen = make([]seen, MaxKeys)
	}
	follows := func(i int) bool {
		key := space + sum(keys[i])
		s := o.atLocked(key)
		return s.key == key && s.before == space+sum(keys[i-1]) && (s.asked || !asked)
	}
	if follows(1) && follows(n-1) {
		return false // there is one chain of keys before the last, and that was seen
	}
	before := uint64(0)
	for i := range keys {
		key := space + sum(keys[i])
		long := i > 0 && len(keys[i-1]) > MaxKey
		if key != before && !long && (asked || i > 0) && o.noteLocked(seen{key: key, before: before, asked: asked}) && i > 0 {
			o.atLocked(key).parent = string(keys[i-1])
			news = true
		}
		before = key
	}
	return news
}

// spaceOf is what the fingerprints of a namespace's keys have in common.
func spaceOf(ns string) uint64 { return xxhash.Sum64String(ns) * 31 }

func sum[K Text](key K) uint64 {
	switch k := any(key).(type) {
	case string:
		return xxhash.Sum64String(k)
	case []byte:
		return xxhash.Sum64(k)
	}
	return 0
}

// noteLocked notes a key, and is true when another parent is concluded from now on, for
// the caller to fill in.
func (o *Orders) noteLocked(now seen) bool {
	s := o.atLocked(now.key)
	switch {
	case s.key != now.key:
		*s = now
		return true
	case s.before == now.before:
		s.asked = s.asked || now.asked
	case now.asked && (!s.asked || s.before == 0):
		*s = now
		return true
	case now.asked && now.before != 0, !now.asked && !s.asked:
		s.refuted = true
	}
	return false
}

// atLocked returns where a key is, if it is remembered.
func (o *Orders) atLocked(key uint64) *seen { return &o.mu.seen[key%MaxKeys] }

// Parent returns the key that came before one; "" when that is not known.
func (o *Orders) Parent(ns, key string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.seen == nil {
		return ""
	}
	fp := spaceOf(ns) + sum(key)
	if s := o.atLocked(fp); s.key == fp && !s.refuted {
		return s.parent
	}
	return ""
}
