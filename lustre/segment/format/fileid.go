package format

import (
	"cmp"
	"strconv"
	"strings"

	"cascadekv/tiers"
)

// FileID identifies a segment.
type FileID struct {
	Rank        uint32
	Incarnation uint64
	Number      uint64
}

// CompareAge orders files by when their runs began, and those of a run by when they were begun, the oldest first.
func (id FileID) CompareAge(of FileID) int {
	return cmp.Or(cmp.Compare(id.Incarnation, of.Incarnation), cmp.Compare(id.Number, of.Number), cmp.Compare(id.Rank, of.Rank))
}

// Supersedes reports whether of two copies of a block, or of one record, a rank goes by that in id, and not that
// in of: as its index does (docs/format.md, "stale"). A rank's own files come first: what it writes, merges of what it
// inherited among it, counts for it, whenever the other run began.
func (id FileID) Supersedes(of FileID, rank uint32) bool {
	if own := id.Rank == rank; own != (of.Rank == rank) {
		return own
	}
	return id.CompareAge(of) > 0
}

// Part returns the run in whose directory the file lies.
func (id FileID) Part() tiers.Part { return tiers.Part{Rank: id.Rank, Incarnation: id.Incarnation} }

// Name returns the file's name in that directory.
func (id FileID) Name() string {
	b := appendPadded(append(make([]byte, 0, nameBytes), "agg_rank"...), uint64(id.Rank), 10, 3)
	b = appendPadded(append(b, '_'), id.Number, 10, 6)
	return string(append(b, ".bin"...))
}

// Dir returns the name of the incarnation's directory.
func (id FileID) Dir() string { return Dir(id.Part()) }

// Path returns the file's path in the directory of all runs.
func (id FileID) Path() string { return id.Dir() + "/" + id.Name() }

// ParseName reads the name of a segment file. The incarnation is that of its
// directory, and zero here.
func ParseName(name string) (id FileID, ok bool) {
	rest, isSegment := strings.CutSuffix(strings.TrimPrefix(name, "agg_rank"), ".bin")
	rank, number, found := strings.Cut(rest, "_")
	r, err1 := strconv.ParseUint(rank, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 64)
	id = FileID{Rank: uint32(r), Number: n}
	return id, isSegment && found && err1 == nil && err2 == nil && name == id.Name()
}

// ParsePath reads a path as FileID.Path makes it; false for any other, so that
// it cannot lead out of the directory.
func ParsePath(path string) (id FileID, ok bool) {
	dir, name, _ := strings.Cut(path, "/")
	one, isRun := ParseDir(dir)
	id, isSegment := ParseName(name)
	id.Incarnation = one.Incarnation
	return id, isRun && isSegment && id.Rank == one.Rank
}

// Dir returns the name of the directory of a run.
func Dir(one tiers.Part) string {
	b := appendPadded(append(make([]byte, 0, nameBytes), "rank"...), uint64(one.Rank), 10, 3)
	return string(appendPadded(append(b, '-'), one.Incarnation, 16, 16))
}

// nameBytes are enough for a name: each read by a path makes two of them.
const nameBytes = 48

// appendPadded appends n to b with at least so many digits.
func appendPadded(b []byte, n uint64, base, digits int) []byte {
	var room [20]byte
	text := strconv.AppendUint(room[:0], n, base)
	for range digits - len(text) {
		b = append(b, '0')
	}
	return append(b, text...)
}

// ParseDir is the inverse of DirName; false for any other name.
func ParseDir(name string) (one tiers.Part, ok bool) {
	digits, hex, found := strings.Cut(strings.TrimPrefix(name, "rank"), "-")
	r, err1 := strconv.ParseUint(digits, 10, 32)
	i, err2 := strconv.ParseUint(hex, 16, 64)
	one = tiers.Part{Rank: uint32(r), Incarnation: i}
	return one, found && err1 == nil && err2 == nil && name == Dir(one)
}

// Parts returns those that have a directory among names.
func Parts(names []string) (all []tiers.Part) {
	for _, name := range names {
		if one, ok := ParseDir(name); ok {
			all = append(all, one)
		}
	}
	return all
}
