package index

import "slices"

// others are the segments, by their numbers in ascending order, in which there are records
// of a name besides the one that counts: while such a segment is there, what the record
// hides would come back without it. Four bytes for each, so that reading a record allocates
// nothing; none with flagHides stands for more than maxOthers.
type others []byte

// cutOthers reads the others that p begins with, and returns the rest of p.
func cutOthers(p []byte) (others, []byte, error) {
	if len(p) == 0 || p[0] > maxOthers || len(p) <= 4*int(p[0]) {
		return nil, nil, badFormat("other segments in %d bytes", len(p))
	}
	o, p := others(p[1:1+4*int(p[0])]), p[1+4*int(p[0]):]
	for i := 4; i < len(o); i += 4 {
		if le.Uint32(o[i-4:]) >= le.Uint32(o[i:]) {
			return nil, nil, badFormat("segments in no order")
		}
	}
	return o, p, nil
}

// with returns o with one more and without those that are gone; false when they are too many.
func (t *segmentTable) with(o others, number uint32) (others, bool) {
	all := []uint32{number}
	for ; len(o) > 0; o = o[4:] {
		if n := le.Uint32(o); n != number && t.there(n) != nil {
			all = append(all, n)
		}
	}
	if len(all) > maxOthers {
		return nil, false
	}
	slices.Sort(all)
	in := make(others, 0, 4*len(all))
	for _, n := range all {
		in = le.AppendUint32(in, n)
	}
	return in, true
}

// hides reports whether there may be other records of the name of a record, in a segment
// that is alive, anywhere (more), and of them in a segment of another part: what a part has
// itself is known to its owner.
func (t *segmentTable) hides(rec *nameRecord) (more, ofOthers bool) {
	if rec.flags&flagHides == 0 {
		return false, false
	}
	own := t.row(rec.segment)
	if own == nil || len(rec.others) == 0 {
		return true, true
	}
	for o := rec.others; len(o) > 0; o = o[4:] {
		n := le.Uint32(o)
		r := t.there(n)
		if r == nil || n == rec.segment {
			continue
		}
		if more = true; r.segment.Rank != own.segment.Rank || r.segment.Incarnation != own.segment.Incarnation {
			return true, true
		}
	}
	return more, false
}

// replaced returns what the one that counts of two records, which is not q's if that is
// older, has for the sake of the other, and of those that were there before.
func (p *planner) replaced(q *queued, cur *named, older bool) (flags uint16, in others) {
	if !cur.exists {
		return 0, nil
	}
	flags = cur.rec.flags & flagOutlived
	had := cur.rec.name(cur.at, p.engine.segments)
	old, young := had.ends(), q.name.ends()
	if cur.rec.seq > q.name.Seq {
		old, young = young, old
	}
	if old > young {
		flags |= flagOutlived
	}
	lost := cur.rec.segment
	if older {
		lost = q.segment
	}
	in, known := cur.rec.others, cur.rec.flags&flagHides == 0 || len(cur.rec.others) > 0
	if cur.rec.segment != q.segment && known {
		in, known = p.engine.segments.with(in, lost)
	}
	if !known || len(in) > 0 {
		flags |= flagHides
	}
	return flags, in
}
