package tombstones

import (
	"maps"
	"slices"
	"time"

	"cascadekv/internal/block"
)

// keepFor is how long a name, or a clearing, is remembered after the catalogue has
// withdrawn it: whoever found it before has asked for its block by then.
const keepFor = 10 * time.Second

// Set is the tombstones of one rank. It is not safe for concurrent use.
type Set struct {
	names map[id]tombstone
	queue []id        // of names that the catalogue has not withdrawn yet
	clear []*Clearing // that the catalogue has not withdrawn yet

	// The last ones that it has:
	cleared    map[string]tombstone // by namespace
	clearedAll tombstone
}

type id struct{ ns, key string }

type tombstone struct {
	below uint64
	done  time.Time // when the catalogue had withdrawn what is below; zero before
}

// Clearing invalidates puts stamped below, of a namespace or of all.
type Clearing struct {
	Withdrawn int // names of the catalogue so far; the owner counts

	ns    string
	all   bool
	below uint64
}

// New returns an empty set.
func New() Set { return Set{names: map[id]tombstone{}, cleared: map[string]tombstone{}} }

// Has reports whether a name of the catalogue is invalid.
func (s *Set) Has(n *block.Name) bool { return s.Invalid(n.Namespace, n.Key, n.Seq) }

// Invalid is Has for the put of a name stamped seq.
func (s *Set) Invalid(ns, key string, seq uint64) bool {
	return seq < s.names[id{ns, key}].below || seq < s.cleared[ns].below || seq < s.clearedAll.below ||
		slices.ContainsFunc(s.clear, func(c *Clearing) bool { return c.invalid(ns, seq) })
}

// Has reports whether c invalidates a name of the catalogue.
func (c *Clearing) Has(n *block.Name) bool { return c.invalid(n.Namespace, n.Seq) }

func (c *Clearing) invalid(ns string, seq uint64) bool {
	return seq < c.below && (c.all || c.ns == ns)
}

// Below is the stamp below which puts are invalid.
func (c *Clearing) Below() uint64 { return c.below }

// Add invalidates puts of a name stamped below, and reports whether that is
// more than was invalid.
func (s *Set) Add(ns, key string, below uint64) bool {
	k := id{ns, key}
	t, known := s.names[k]
	if known && below <= t.below {
		return false
	}
	if !known || !t.done.IsZero() {
		s.queue = append(s.queue, k)
	}
	s.names[k] = tombstone{below: below}
	return true
}

// NewClearing returns a clearing of a namespace, or of all, that is in no set yet.
func NewClearing(ns string, all bool, below uint64) *Clearing {
	return &Clearing{ns: ns, all: all, below: below}
}

// AddClearing invalidates what c does.
func (s *Set) AddClearing(c *Clearing) { s.clear = append(s.clear, c) }

// Queued returns up to most names that the catalogue has not withdrawn, those that
// were added first first, with the stamp as Seq.
func (s *Set) Queued(most int) []block.Name {
	names := make([]block.Name, min(most, len(s.queue)))
	for i := range names {
		k := s.queue[i]
		names[i] = block.Name{Namespace: k.ns, Key: k.key, Seq: s.names[k].below}
	}
	return names
}

// Flushed records that the catalogue has withdrawn what Queued returned last, and
// reports whether there is more.
func (s *Set) Flushed(names []block.Name, now time.Time) (more bool) {
	s.queue = s.queue[len(names):]
	for _, n := range names {
		k := id{n.Namespace, n.Key}
		if t := s.names[k]; t.below == n.Seq {
			s.names[k] = tombstone{below: t.below, done: now}
		} else {
			s.queue = append(s.queue, k) // added again meanwhile
		}
	}
	return len(s.queue) > 0
}

// Clearing returns the oldest clearing that the catalogue has not withdrawn, nil when there
// is none.
func (s *Set) Clearing() *Clearing {
	if len(s.clear) == 0 {
		return nil
	}
	return s.clear[0]
}

// Cleared records that the catalogue has withdrawn all that c invalidates.
func (s *Set) Cleared(c *Clearing, now time.Time) {
	s.clear = slices.DeleteFunc(s.clear, func(other *Clearing) bool { return other == c })
	if t := (tombstone{below: c.below, done: now}); c.all {
		s.clearedAll = t
	} else {
		s.cleared[c.ns] = t
	}
}

// Sweep forgets what the catalogue has withdrawn some time ago.
func (s *Set) Sweep(now time.Time) {
	maps.DeleteFunc(s.names, func(_ id, t tombstone) bool { return t.over(now) })
	maps.DeleteFunc(s.cleared, func(_ string, t tombstone) bool { return t.over(now) })
	if s.clearedAll.over(now) {
		s.clearedAll = tombstone{}
	}
}

// over reports whether nobody needs t any more.
func (t tombstone) over(now time.Time) bool { return !t.done.IsZero() && now.Sub(t.done) >= keepFor }
