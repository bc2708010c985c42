// Package region reaches the memory that a client shares with the rank: it
// verifies and maps the descriptors that clients send, checks where in them a
// command places blocks, and copies in and out.
//
// Glossary
//
//	extent  a run of bytes of a region
//	cursor  how far the extents of one block were copied
//	lost    of bytes that the client cut off its file, or that the system
//	        has no memory for: touching them raises SIGBUS
//
// A client may truncate its file at any moment. A copy that touches what is
// lost fails with ErrLost and harms nothing else. Whatever a client does to an
// eventfd, to Ring it does not wait. The package does not know
// sockets, commands or blocks, and compares no checksums.
package region
