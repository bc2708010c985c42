package segment

import (
	"cmp"
	"slices"

	"cascadekv/lustre/segment/format"
)

const (
	// maxGap is how much that nobody wants is read to save a call: what a
	// disk moves in the time that a call costs more. The padding of payloads
	// to pages is always less.
	maxGap = 64 << 10

	// maxRead bounds one call, in bytes: as much as a parallel file system
	// sends at once, and little enough that a long run of blocks becomes
	// several calls that are under way together.
	maxRead = 2 << 20

	// maxParts bounds the blocks of one call: each takes up to two buffers of
	// the kernel's 1024, with the gap before it.
	maxParts = 256
)

// source is a file that batches read: one of the index, or one that is known by
// its name alone.
type source interface {
	ident() format.FileID
	where() string // its path

	// open lends the file, open; it may take as long as the file system.
	open(*Store) (lent, error)

	// renew has the next open replace a handle that is stale.
	renew(*Store) error

	// retain keeps the file from going until release.
	retain(*Store)
	release(*Store)
}

// wanted is a run of bytes in a file that belong to a block.
type wanted struct {
	file      source
	off, size int64
	block     int // which of the batch
}

// byPlace orders extents by file and offset.
func byPlace(a, b wanted) int {
	if a.file != b.file {
		x, y := a.file.ident(), b.file.ident()
		if order := cmp.Or(cmp.Compare(x.Rank, y.Rank), cmp.Compare(x.Incarnation, y.Incarnation), cmp.Compare(x.Number, y.Number)); order != 0 {
			return order
		}
	}
	return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.block, b.block))
}

// part is what one call reads of a block, behind gap bytes that nobody wants.
type part struct {
	block      int
	gap        int64
	from, size int64 // of the block's bytes as stored
}

// call is one read of a batch: parts one behind the other from off on. The
// first has no gap.
type call struct {
	file      source
	off, size int64
	first     int // among the parts of all calls
	parts     []part
}

func (c *call) end() int64 { return c.off + c.size }

// coalesce makes calls of extents, which it sorts by file and offset:
// neighbours are joined, long ones cut. Extents of no bytes need no call.
func coalesce(extents []wanted) []call {
	slices.SortFunc(extents, byPlace)
	var calls []call
	var c *call                            // the last one
	parts := make([]part, 0, len(extents)) // of all calls, one behind the other
	for _, e := range extents {
		for from := int64(0); from < e.size; {
			p := part{block: e.block, from: from, size: min(e.size-from, maxRead)}
			if from == 0 && c != nil && c.takes(e, p.size, len(parts)-c.first) {
				p.gap = e.off - c.end()
				c.size += p.gap + p.size
			} else {
				calls = append(calls, call{file: e.file, off: e.off + from, size: p.size, first: len(parts)})
				c = &calls[len(calls)-1]
			}
			parts = append(parts, p)
			from += p.size
		}
	}
	end := len(parts)
	for i := range slices.Backward(calls) {
		calls[i].parts, end = parts[calls[i].first:end], calls[i].first
	}
	return calls
}

// takes reports whether the first n bytes of e can be added to c, which has so
// many parts.
func (c *call) takes(e wanted, n int64, parts int) bool {
	gap := e.off - c.end()
	return e.file == c.file && gap >= 0 && gap <= maxGap && c.size+gap+n <= maxRead && parts < maxParts
}
