// Package format has the bytes of a segment file as docs/format.md §1 describes them:
// names of files and directories, header page, frames, entries, footer, and which
// entries of a file count (Scanner, §1.7).
//
// Glossary
//
//	footer   the entries of all frames, at the end of a sealed segment
//	draft    the layout of a sealed segment whose payloads lie elsewhere
//
// The package keeps nothing between calls, takes no lock, and reads files only
// through a Scanner. It does not create files and does not decode payloads.
package format
