// Package hangfs is a file system for tests, whose server stops, on request,
// answering: reads of it then hang in the kernel as those of a parallel file
// system do whose servers are gone.
//
// Glossary
//
//	server  this process: it speaks FUSE with the kernel by /dev/fuse
//	hang    reads arrive and are not answered
//	answer  what hung is answered, and what comes from then on
//
// The files lie in one directory, are given at Mount and can only be read. They
// bypass the page cache, so that every read is a request. Mounting needs the
// privilege to do so; without it, or without FUSE, Mount is ErrUnsupported.
//
// The package is no general FUSE library: it knows the requests that reading takes,
// and answers all others with "not implemented".
package hangfs
