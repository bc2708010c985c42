package segment

import (
	"cmp"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/codec"
	"cascadekv/lustre/segment/lease"
)

// Options configure a Store. The zero value of every field but Dir is useful.
type Options struct {
	Dir         string // made, with its parents, if it is not there
	Rank        uint32
	Incarnation uint64 // default: Unix nanoseconds at Open

	// OwnOnly has Recover read the segments of this rank alone; those of others
	// are taken in by Adopt.
	OwnOnly bool

	// AdoptOrphans has Recover, without OwnOnly, take over what runs of other rank
	// numbers left that have ended, so that its space can be had back.
	AdoptOrphans bool

	// Catalogued: what others left is known to the caller apart from this
	// store: see Hides.
	Catalogued bool

	// SegmentBytes bounds a segment; a batch that is larger gets one of its
	// own. Default 1 GiB: few files, and yet space comes back in pieces.
	SegmentBytes int64
	// SegmentBlocks bounds the blocks of a segment; 0, the default, means no
	// bound. CASCADE §III-D uses 256; docs/format.md §1.1 has why we do not. It bounds
	// names too, since those of the segment being written are in memory: one with four
	// times as many entries takes no further frame.
	SegmentBlocks int

	// MaxFiles is how many segments of this rank there may be, those that it writes
	// to not counted, before Merge rewrites those that are not full into fewer.
	// More stay where they are full, or too different for it to pay. 0, the
	// default, means any number.
	MaxFiles int

	// Compress has Put encode blocks where that saves pages (lustre/codec), on as
	// many cores as the process has. What is encoded is read in any case.
	Compress bool

	// Readers and Writers bound the file operations that are in the kernel at
	// once. One that hangs leaves its place to another, so that a dead server
	// can take as many threads again, and half as many more. Defaults 64, 8.
	Readers, Writers int

	// OpenFiles bounds the files kept open for ReadPlace, default 64, and
	// KeepOpen how long one is, default 30 s: the space of a file that its
	// owner unlinked comes back when the last descriptor is closed.
	OpenFiles int
	KeepOpen  time.Duration

	// CloseWait bounds how long Close waits for references and for running
	// operations, and then again for its own writes. Default 5 s.
	CloseWait time.Duration

	// RetryFull is how long a full file system is left alone when statfs shows
	// no new room. Default 1 minute: a raised quota does not show there.
	RetryFull time.Duration

	// Layout lays out this store's files; nil: nothing is asked for, and
	// nothing is known of it.
	Layout Layouter

	// Advice is called with what is about to be read in many pieces; nil: nobody is.
	// It pays where servers read from disks that turn and cache what they
	// read, and costs them a second read where they do not cache.
	Advice Adviser

	// Direct decides whether reads and writes go past the page cache, where what
	// is read would take the job's memory a second time. Auto finds it out by
	// a write and a read in Dir, and is Off with an FS of the caller's.
	// Without it, what was read is dropped from the cache afterwards.
	Direct Switch
	// Uring decides whether batches are read through io_uring instead of a
	// thread for each call. It has no effect with an FS of the caller's.
	Uring Switch

	// Group is a group of users who trust each other with this campaign: it may
	// read what this store writes, and what it owns is read. 0, the default: there
	// is none, and only what belongs to this user or to root is read. It has no
	// effect with an FS of the caller's.
	Group int

	// MaxOpenFiles bounds the files that are open at once, those of reads and
	// writes under way among them, but for those that take longer than a second; so
	// it bounds Readers too. At least 8 are used. 0, the default, is no bound. In any
	// case files that are idle are closed when the process may open no more.
	MaxOpenFiles int

	// Patience is how long Recover and Adopt wait for a file that makes no
	// progress before they go on without it. Default 2 s.
	Patience time.Duration

	// Process is this one, to those who ask whether it still exists. Default
	// Self().
	Process lease.Process

	// Succeeds means that another run of Process, which has become another program, is over,
	// whether or not it could end in good order.
	Succeeds bool

	FS  vfs.FS           // default vfs.OS
	Now func() time.Time // default time.Now

	coder *codec.Coder // default one of the store's own; tests open many stores
}

func setDefaults(o *Options) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Incarnation = cmp.Or(o.Incarnation, uint64(o.Now().UnixNano()))
	o.Process = cmp.Or(o.Process, lease.Self())
	o.SegmentBytes = cmp.Or(max(o.SegmentBytes, 0), 1<<30)
	o.Readers, o.Writers = cmp.Or(max(o.Readers, 0), 64), cmp.Or(max(o.Writers, 0), 8)
	o.OpenFiles = cmp.Or(max(o.OpenFiles, 0), 64)
	shareFiles(o)
	o.KeepOpen = cmp.Or(max(o.KeepOpen, 0), 30*time.Second)
	o.CloseWait = cmp.Or(max(o.CloseWait, 0), 5*time.Second)
	o.Patience = cmp.Or(max(o.Patience, 0), 2*time.Second)
	o.RetryFull = cmp.Or(max(o.RetryFull, 0), time.Minute)
}

// Layouter lays out files on a file system with stripes; lustre/layout has one.
// Its methods run where writes do and may take as long as the file system.
// Whatever fails in them, files are written all the same.
type Layouter interface {
	// Prepare is called with the directory of this incarnation, in which there is
	// nothing but its token, an empty file that needs no stripes, before its
	// first file is made.
	Prepare(dir string)
	// Describe is called with each file that was just made, still empty. It
	// returns the text for the layout field of the header page
	// (docs/format.md §1.3), of which 1024 bytes are kept.
	Describe(path string) string
}
