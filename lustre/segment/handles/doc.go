// Package handles keeps files of segments open between reads by place, a bounded number
// of them for a bounded time: a file that its owner has unlinked takes space until the
// last descriptor is closed.
//
// A file is one of a path and, by its header, of a segment. The package does not read
// blocks, and does not know files that the store has in its index: see lustre/segment.
package handles
