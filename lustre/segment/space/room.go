package space

import (
	"fmt"
	"sync"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

const (
	// LookEvery is how often statfs is asked while one segment takes frames.
	LookEvery = 10 * time.Second

	// marksShare is the part of a file system that the marks are bounded by, as
	// one in so many: a segment may be a large part of a small one.
	marksShare = 100
)

// Options configure a Room.
type Options struct {
	FS        vfs.FS
	Dir       string
	Segment   int64         // bytes of a full segment
	RetryFull time.Duration // how long a full file system is left alone when statfs shows no new room
	Now       func() time.Time
}

// marks returns how much room, in bytes, ends the puts of a store, and how much
// lets them go on: half a segment, so that a merge can still make room, and a
// whole one. A file system that does not report its size has none.
func marks(segment, total int64) (low, high int64) {
	high = min(segment, total/marksShare)
	return high / 2, high
}

// Room is what is known of the space of the file system. All methods are safe for
// concurrent use; statfs is asked without the lock.
type Room struct {
	o  Options
	mu struct {
		sync.Mutex
		space  vfs.Space
		asked  time.Time // when statfs was
		asking bool

		low bool // statfs showed less than the low mark, and not the high one since

		full bool // a write found no space or quota, of which statfs may know nothing
		then int64
		when time.Time
	}
}

// New makes a Room that has seen nothing yet.
func New(o Options) *Room { return &Room{o: o} }

// learnLocked records an answer of statfs.
func (r *Room) learnLocked(space vfs.Space) {
	r.mu.space = space
	switch low, high := marks(r.o.Segment, space.Total); {
	case space.Free < low:
		r.mu.low = true
	case space.Free >= high:
		r.mu.low = false
	}
}

// Check refuses writes while the file system is full, and those of blocks while it is
// nearly so: names, footers and merges have what is left. Errors match tiers.ErrFull
// and tiers.ErrUnavailable.
func (r *Room) Check(need int64, blocks int) error {
	r.mu.Lock()
	ask := r.mu.full || r.mu.low || !r.mu.asked.IsZero() && r.o.Now().Sub(r.mu.asked) >= LookEvery
	r.mu.Unlock()
	if ask {
		r.Ask()
	}
	return r.refuse(need, blocks)
}

// CheckNewFile is Check once a write is about to make a segment.
func (r *Room) CheckNewFile(need int64, blocks int) error {
	r.Ask()
	return r.refuse(need, blocks)
}

func (r *Room) refuse(need int64, blocks int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	low, high := marks(r.o.Segment, r.mu.space.Total)
	if r.mu.space.Free >= max(r.mu.then+need+low, high) || r.o.Now().Sub(r.mu.when) >= r.o.RetryFull {
		// There is room for more than there was then, or some time has passed: a
		// raised quota does not show.
		r.mu.full = false
	}
	switch free := r.mu.space.Free >> 20; {
	case r.mu.full:
		return full("a write under %s found none (%d MiB free): free some, raise the quota, or remove old incarnations", r.o.Dir, free)
	case r.mu.low && blocks > 0:
		return full("%d MiB free under %s, below the mark of %d MiB: free some, or remove old incarnations", free, r.o.Dir, low>>20)
	}
	return nil
}

func full(format string, args ...any) error {
	return fmt.Errorf("lustre: %w: %w: read-only: %s", tiers.ErrFull, tiers.ErrUnavailable, fmt.Sprintf(format, args...))
}

// Ask learns the file system's space, unless another is at it: a statfs that
// hangs takes one thread, and the others go by what is known.
func (r *Room) Ask() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.asking {
		return
	}
	r.mu.asking = true
	var space vfs.Space
	var err error
	pool.Without(&r.mu.Mutex, func() { space, err = r.o.FS.Statfs(r.o.Dir) })
	r.mu.asking, r.mu.asked = false, r.o.Now()
	if err == nil {
		r.learnLocked(space)
	}
}

// Fill notes that a write found no room: writes are refused until there is more than
// now.
func (r *Room) Fill() {
	r.Ask()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.full, r.mu.then, r.mu.when = true, r.mu.space.Free, r.o.Now()
}

// Spend notes that a write took so many bytes, so that a store alone on its file
// system stops at the mark, not at the next look.
func (r *Room) Spend(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if space := r.mu.space; space.Total > 0 {
		space.Free -= n
		r.learnLocked(space)
	}
}

// Short reports whether writes are refused because the file system is full, or
// nearly so, and how many bytes are free as far as known.
func (r *Room) Short() (short bool, free int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.full || r.mu.low, r.mu.space.Free
}
