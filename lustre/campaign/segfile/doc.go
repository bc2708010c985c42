// Package segfile works on one segment file without a store: what is in it, what is
// damaged and what can be saved (Inspect), payloads of it for a new one (Copier), and
// a copy of a sealed segment from a stream that nobody trusts (Transfer).
// docs/format.md §1 describes the files.
//
// Glossary
//
//	hidden  an intact entry that readers do not see, for damage before it
//
// The package opens no file, has no opinion on what to do about damage, and does
// not keep blocks: package campaign repairs, exports and imports with it.
package segfile
