package index

import (
	"cmp"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options configure an Index. The zero value of every field but Dir is useful.
type Options struct {
	Dir      string // on node-local storage; made, with its parents, if it is not there
	Campaign string // whose segments these are: an index of another campaign is emptied
	Rank     uint32 // whose index it is: of two copies of something that rank's own counts. It stays the same for a Dir

	// CacheBytes bounds what is kept in memory, write buffers included, default
	// 128 MiB: beside those the filters and index blocks of some ten million
	// blocks; the rest comes from the kernel's page cache. MemTableBytes is the
	// size of one write buffer, default 16 MiB; there are up to three. A crash
	// forgets what is in them, and Load puts it again.
	CacheBytes    int64
	MemTableBytes int64

	// SizeRatio (T of SGLang-LSM §3.3, default 10) is how many times larger
	// each level is than the one above it. Runs (K, default 4) is how many
	// sorted runs the top level gathers before they are merged down. Pebble has
	// no other level with several runs. Retune changes both.
	SizeRatio int
	Runs      int

	// CloseWait bounds how long Open, Close and Retune wait for the disk, default
	// 30 s. One that takes longer is taken for broken.
	CloseWait time.Duration

	Now func() time.Time // for names that expire; default time.Now

	fs         vfs.FS                          // default vfs.Default
	fsType     func(dir string) (int64, error) // default statfs
	cleanAfter int64                           // dead entries below which nothing is removed
	loadBatch  int                             // default loadBatch
}

func (o *Options) setDefaults() {
	o.CacheBytes = cmp.Or(max(o.CacheBytes, 0), 128<<20)
	o.MemTableBytes = cmp.Or(max(o.MemTableBytes, 0), 16<<20)
	o.SizeRatio, o.Runs = tuning(o.SizeRatio, o.Runs)
	o.CloseWait = cmp.Or(max(o.CloseWait, 0), 30*time.Second)
	o.loadBatch = cmp.Or(o.loadBatch, loadBatch)
	o.cleanAfter = cmp.Or(o.cleanAfter, 64<<10)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.fs == nil {
		o.fs = vfs.Default
	}
	if o.fsType == nil {
		o.fsType = statfsType
	}
}

// Bounds of the tuning: what Pebble works well with.
const (
	minRatio, maxRatio = 2, 32
	minRuns, maxRuns   = 1, 64
)

// tuning puts T and K within bounds; 0 means the default.
func tuning(sizeRatio, runs int) (int, int) {
	return min(max(cmp.Or(sizeRatio, 10), minRatio), maxRatio), min(max(cmp.Or(runs, 4), minRuns), maxRuns)
}
