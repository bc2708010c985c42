package nvme

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"cascadekv/gpu/store"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// Options configure a Tier.
type Options struct {
	// Dirs are directories on local file systems, one for each disk: GPU files are striped over them. One that
	// is not there is made, but not its parents. The same ones in the same order find what an earlier
	// process left.
	Dirs []string

	// Bytes is how much of the disks is used, about, the log excluded. It is rounded down to whole containers.
	Bytes int64

	// FileBytes is the size of a GPU file, default 1 MiB, rounded up to whole pages for each directory. A block takes as
	// many as it needs: smaller ones waste less of the disk, larger ones need less heap, some 200 bytes
	// each besides 350 of a block. With another size what an earlier process left is lost.
	FileBytes int64

	// StagingBytes is host memory for blocks on their way to the disk, default 128 GPU files. It bounds the size of
	// a block, and how much may come while the disk syncs or does not answer. What was never
	// used of it costs nothing.
	StagingBytes int64

	// ReadBytes is host memory for reads, default 16 GPU files: so many are read at once.
	ReadBytes int64

	Direct bool   // bypass the page cache, which would keep a second copy of what leaves DRAM
	FS     vfs.FS // default vfs.OS

	closePatience time.Duration // for pins, and as much for the disk; default 5 s
	readPatience  time.Duration // of what reads without a context; default 10 s
	brokenFor     time.Duration // how long no new blocks are taken after a write has failed; default 1 s
}

// Buffers is how many GPU files there is host memory for by default: those of StagingBytes and ReadBytes.
const (
	Buffers      = stagingFiles + readFiles
	stagingFiles = 128
	readFiles    = 16
)

// maxContainerFiles is how many GPU files a container has a share of at most: by default some GiB
// of all disks together, of which a large pool has some thousands.
const maxContainerFiles = 1024

func (o Options) withDefaults() (Options, error) {
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	o.FileBytes = cmp.Or(o.FileBytes, 1<<20)
	o.closePatience = cmp.Or(o.closePatience, 5*time.Second)
	o.brokenFor = cmp.Or(o.brokenFor, time.Second)
	o.readPatience = cmp.Or(o.readPatience, 10*time.Second)
	if len(o.Dirs) < 1 || o.FileBytes < 1 {
		return o, fmt.Errorf("%s: %w: %d directories, GPU files of %d bytes: set one of each at least", Name, tiers.ErrUnavailable, len(o.Dirs), o.FileBytes)
	}
	pages := int64(2*o.layers()) * page
	o.FileBytes = (o.FileBytes + pages - 1) / pages * pages
	o.StagingBytes = cmp.Or(o.StagingBytes, stagingFiles*o.FileBytes)
	o.ReadBytes = cmp.Or(o.ReadBytes, readFiles*o.FileBytes)
	if err := o.shape().Check(); err != nil {
		return o, fmt.Errorf("%s: GPU files of %d bytes in %d directories: %w", Name, o.FileBytes, len(o.Dirs), err)
	}
	if o.files() < 1 || o.StagingBytes < o.FileBytes || o.ReadBytes < o.FileBytes {
		return o, fmt.Errorf("%s: %w: %d bytes on disk, %d for blocks on their way, %d for reads: a GPU file has %d, set no less",
			Name, tiers.ErrUnavailable, o.Bytes, o.StagingBytes, o.ReadBytes, o.FileBytes)
	}
	return o, nil
}

// page is what the store aligns objects to.
const page = 4096

// layers makes GPU files of as many objects as take all directories alike.
func (o Options) layers() int {
	if d := len(o.Dirs); d%2 == 1 && d > 1 {
		return d
	}
	return max(len(o.Dirs)/2, 1)
}

// shape has objects of whole pages: a GPU file is what matters, its layers are nobody's.
func (o Options) shape() store.Shape {
	return store.Shape{Layers: o.layers(), BlockTokens: int(o.FileBytes / int64(2*o.layers()) / page), KVHeads: 1, HeadDim: page, ElementBytes: 1}
}

// containerFiles follows from the size of the pool where that is small, so that it need not be made whole at
// once, and so that it does not change with each change of that.
func (o Options) containerFiles() int {
	each := 1
	for each < maxContainerFiles && int64(each)*16 <= o.Bytes/o.FileBytes {
		each *= 2
	}
	return each
}

// files is how many GPU files there are to be: whole containers.
func (o Options) files() int64 {
	return o.Bytes / o.FileBytes / int64(o.containerFiles()) * int64(o.containerFiles())
}

// makeDirs makes directories that are not there.
func (o Options) makeDirs() error {
	for _, dir := range o.Dirs {
		if err := o.FS.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%w: make the directory above it: %w", tiers.ErrUnavailable, err)
		}
	}
	return nil
}
