// Package layout asks Lustre how to lay files out over its OSTs, and finds out
// how it really did. It needs neither cgo nor the lfs program. On any other
// file system every call returns "no striping here" and changes nothing.
//
// Glossary
//
//	pool       OSTs that an administrator has put together under a name
//	component  a part of a file with stripes of its own; a file whose layout
//	           has several is a PFL file, or composite
//	default    the layout of a directory, which new files in it get
//	DoM        the first bytes of a file lie on the metadata server
//	Layout     what is asked for
//	Granted    what a file or directory has
//	Report     the one held against the other
//
// A request that succeeds is no proof: Lustre gives fewer stripes when it has
// fewer OSTs, an administrator may have it ignore requests, and a second
// request for one file is dropped. So the answer is always read, from the
// extended attribute lustre.lov: the call made for this (LL_IOC_LOV_GETSTRIPE)
// leaves the objects out when the caller's buffer does not say how many to
// expect.
//
// The package does not choose layouts, retry, log, or know segments. Mirrors,
// self-extending files, erasure codes and lists of OSTs are read, not asked for.
// Group locks, locks ahead and advice that bytes are not needed are left out:
// locks of that kind are for several clients that write one file, and a segment
// has one writer; and bytes that one rank has read another may want, until the
// segment is unlinked, which takes them out of the servers' memory.
package layout
