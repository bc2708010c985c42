package directory

import (
	"slices"
	"time"

	"cascadekv/internal/block"
)

// entry is what is known of one name. records is short: a name has few owners.
type entry struct {
	records []record // at most one for each owner
	buried  uint64   // tombstone: puts stamped below this are gone; 0: none
	until   int64    // how long the tombstone stays, Unix nanoseconds; 0: as long as it hides something
}

// record is the newest statement of one owner. Once a put is out of date it
// stays so, whatever becomes of what replaced it: puts of this owner stamped
// below before are no copies any more.
type record struct {
	Statement
	before uint64
	dead   bool // that incarnation of the owner
}

// live reports whether the record has a copy that may be served.
func (r *record) live() bool { return r.Has() && r.Name.Seq >= r.before }

// invalidate takes back the copies that s has no more of.
func (r *record) invalidate(s *Statement) {
	if s.Memory == nil {
		r.Memory = nil
	}
	if s.Segment == nil {
		r.Segment = nil
	}
	if !r.Has() {
		r.Info = block.Info{}
	}
}

// set replaces what the owner stated before, unless that is newer. A statement
// without a copy is kept as long as others have one: it stops older ones that
// are still on their way.
func (e *entry) set(s Statement) {
	for i := range e.records {
		old := &e.records[i]
		if old.Owner != s.Owner {
			continue
		}
		if !s.Newer(&old.Statement) {
			return
		}
		claims := s.claims() && !old.claims()
		if old.Statement, old.dead = s, false; claims { // others may have claimed since then, and know that they were first
			last := *old
			e.records = append(slices.Delete(e.records, i, i+1), last)
		}
		return
	}
	e.records = append(e.records, record{Statement: s, before: e.buried})
}

// replaced finds out of date what a put replaced that came and went before its owner
// stated it: all that is left of it is its stamp, in the statement that withdraws it.
func (e *entry) replaced(s *Statement) {
	if s.Has() {
		return
	}
	for i := range e.records {
		if r := &e.records[i]; r.Owner == s.Owner && (r.Name.Seq >= s.Name.Seq || !s.Newer(&r.Statement)) {
			return
		}
	}
	for i := range e.records {
		if r := &e.records[i]; r.Owner != s.Owner && r.Name.Seq < s.Name.Seq {
			r.before = max(r.before, s.Name.Seq)
		}
	}
}

// deleteBelow gives the entry a tombstone: puts stamped below are gone.
func (e *entry) deleteBelow(below uint64, now time.Time) {
	e.buried, e.until = below, now.Add(keepTombstone).UnixNano()
	for i := range e.records {
		e.records[i].before = max(e.records[i].before, below)
	}
}

// over ends the time of the tombstone. While it hides something it stays.
func (e *entry) over() {
	if e.until = 0; !e.hides() {
		e.buried = 0
	}
}

// hides reports whether an owner has not withdrawn what is out of date. A dead one may come
// back with its arena and its segments, or another rank adopt these.
func (e *entry) hides() bool {
	return slices.ContainsFunc(e.records, func(r record) bool {
		return r.Name.Seq < r.before && (r.Has() || r.dead && r.Info != block.Info{})
	})
}

// newest returns the record of the newest put that has a copy, nil for none.
func (e *entry) newest() *record {
	var best *record
	for i := range e.records {
		r := &e.records[i]
		if r.live() && (best == nil || r.Name.Seq > best.Name.Seq || r.Name.Seq == best.Name.Seq && r.Owner < best.Owner) {
			best = r
		}
	}
	return best
}

// judge finds out which copies are of a deleted or replaced put, and returns
// the owners of all that are and have not been withdrawn yet.
func (e *entry) judge(k key) (out []Stale) {
	if k.namespace == Contents {
		return e.seconds(k)
	}
	best := e.newest()
	for i := range e.records {
		r := &e.records[i]
		if best != nil && r != best && r.live() && best.contradicts(&r.Statement) {
			r.before = best.Name.Seq
			if r.Name.Seq == best.Name.Seq {
				r.before++ // two puts in one tick: the lower rank's stays
			}
		}
		if r.Has() && !r.live() {
			out = append(out, Stale{Owner: r.Owner, Namespace: k.namespace, Key: k.name, Before: r.before})
		}
	}
	return out
}

// copies returns up to MaxCopies copies of the same bytes as best, in the order in which
// owners first stated them, but those in memory before others; of Contents the
// segments first, that of the lowest rank among them, to which others give theirs up, and
// those of dead owners last: nobody gives them names to keep.
func (e *entry) copies(best *record, contents bool) []Statement {
	var buf [MaxCopies]*Statement
	out := buf[:0]
	add := func(memory, dead bool) {
		for i := range e.records {
			r := &e.records[i]
			if len(out) < MaxCopies && (r.Memory != nil) == memory && (contents && r.dead) == dead && r.live() && best.Agrees(&r.Statement) {
				out = append(out, &r.Statement)
			}
		}
	}
	add(!contents, false)
	if contents && len(out) == MaxCopies { // all are of living ranks, in segments, and so there is a keeper
		if keeper := e.keeper(); best.Agrees(&keeper.Statement) && !slices.Contains(out, &keeper.Statement) {
			out[MaxCopies-1] = &keeper.Statement
		}
	}
	add(contents, false)
	if contents {
		add(false, true)
	}
	return handOut(out...)
}

// handOut copies statements and what they point to, MaxCopies at most.
func handOut(list ...*Statement) []Statement {
	if len(list) == 1 { // mostly; in one allocation
		one := new(struct {
			statement [1]Statement
			place
		})
		one.statement[0] = *list[0]
		one.place.take(&one.statement[0])
		return one.statement[:]
	}
	out, places := make([]Statement, len(list)), make([]place, len(list))
	for i, s := range list {
		out[i] = *s
		places[i].take(&out[i])
	}
	return out
}

// take takes over what a statement points to.
func (p *place) take(s *Statement) {
	if s.Memory != nil {
		p.memory, s.Memory = *s.Memory, &p.memory
	}
	if s.Segment != nil {
		p.segment, s.Segment = *s.Segment, &p.segment
	}
}

// empty reports whether there is nothing to remember: nobody has the name, and
// it was not deleted and has not ended lately.
func (e *entry) empty() bool {
	if e.buried > 0 && (e.until > 0 || e.hides()) {
		return false
	}
	for i := range e.records {
		if e.records[i].live() {
			return false
		}
	}
	return true
}
