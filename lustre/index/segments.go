package index

import "sync/atomic"

// segmentTable has which numbers are of live segments. Readers look
// numbers up without a lock; all else is guarded by the index's writing.
type segmentTable struct {
	pages  atomic.Pointer[[]*segmentPage]
	number map[Segment]uint32
	dead   map[uint32]segmentRow // entries of theirs may still lie about
	next   uint32

	// What was put into segments that are alive, and of the others what may lie
	// about; read by anyone.
	count, entries, deadEntries atomic.Int64
}

const pageRows = 1024

type segmentPage [pageRows]atomic.Pointer[segmentRow]

func newSegmentTable() *segmentTable {
	t := &segmentTable{number: map[Segment]uint32{}, dead: map[uint32]segmentRow{}, next: 1}
	t.pages.Store(&[]*segmentPage{})
	return t
}

// row returns the segment with a number, nil when it is not alive. The row is
// read only.
func (t *segmentTable) row(number uint32) *segmentRow {
	pages := *t.pages.Load()
	if i := int(number / pageRows); i < len(pages) {
		return pages[i][number%pageRows].Load()
	}
	return nil
}

func (t *segmentTable) alive(number uint32) bool { return t.row(number) != nil }

// set stores a row under its number, alive or dead.
func (t *segmentTable) set(number uint32, row segmentRow) {
	t.next = max(t.next, number+1)
	slot := t.slot(number)
	if old := slot.Load(); old != nil {
		t.count.Add(-1)
		t.entries.Add(-int64(old.entries))
	}
	t.forget(number)
	if row.dead {
		t.dead[number] = row
		t.deadEntries.Add(int64(row.entries))
		delete(t.number, row.segment)
		slot.Store(nil)
		return
	}
	t.count.Add(1)
	t.entries.Add(int64(row.entries))
	t.number[row.segment] = number
	slot.Store(&row)
}

// forget drops a dead segment.
func (t *segmentTable) forget(number uint32) {
	t.deadEntries.Add(-int64(t.dead[number].entries))
	delete(t.dead, number)
}

func (t *segmentTable) slot(number uint32) *atomic.Pointer[segmentRow] {
	pages := *t.pages.Load()
	if i := int(number / pageRows); i >= len(pages) {
		grown := append([]*segmentPage(nil), pages...)
		for len(grown) <= i {
			grown = append(grown, new(segmentPage))
		}
		t.pages.Store(&grown)
		pages = grown
	}
	return &pages[number/pageRows][number%pageRows]
}

// of returns the row of a segment and its number; 0 when it is not known.
func (t *segmentTable) of(s Segment) (segmentRow, uint32) {
	n, ok := t.number[s]
	if !ok {
		return segmentRow{segment: s}, 0
	}
	return *t.row(n), n
}
