// Package home looks after the directory of an index (docs/format.md §5.1): which of the
// databases in it is in use, for which campaign and in which version of the format, and
// whether its file system is one for an index at all. What another version or campaign left
// is replaced by a new, empty database.
//
// The package does not open databases, and does not keep other processes out: its caller
// holds the lock.
package home
