// Package descriptors divides the files that the kernel lets a rank have open
// (RLIMIT_NOFILE) among those who open them, so that no kind can take what
// another needs: connections of clients, segments, streams of other ranks, and
// memory that clients share.
//
// Glossary
//
//	wish   how many descriptors a kind would take at most
//	split  how many each kind may take, so that all together stay in the limit
//
// The package does not open or count files: it computes, and only Limit asks the
// kernel.
package descriptors
