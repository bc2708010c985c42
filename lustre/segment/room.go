package segment

import (
	"fmt"
	"time"

	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/pool"
)

const (
	// lookEvery is how often statfs is asked while one segment takes frames.
	lookEvery = 10 * time.Second

	// marksShare is the part of a file system that the marks are bounded by, as
	// one in so many: a segment may be a large part of a small one.
	marksShare = 100
)

// marks returns how much room, in bytes, ends the puts of a store, and how much
// lets them go on: half a segment, so that a merge can still make room, and a
// whole one. A file system that does not tell its size has none.
func marks(segment, total int64) (low, high int64) {
	high = min(segment, total/marksShare)
	return high / 2, high
}

// room is what is known of the file system's space. It has no clock and does no
// I/O; it is guarded by Store.mu.
type room struct {
	segment int64 // Options.SegmentBytes
	space   vfs.Space
	asked   time.Time // when statfs was
	asking  bool

	low bool // statfs showed less than the low mark, and not the high one since

	full bool // a write found no space or quota, of which statfs may know nothing
	then int64
	when time.Time
}

// learn notes what statfs says.
func (r *room) learn(space vfs.Space) {
	r.space = space
	switch low, high := marks(r.segment, space.Total); {
	case space.Free < low:
		r.low = true
	case space.Free >= high:
		r.low = false
	}
}

// fill notes that a write found no room.
func (r *room) fill(now time.Time) {
	r.full, r.then, r.when = true, r.space.Free, now
}

// relax ends what fill began once there is room for need bytes and a margin more
// than there was then, or some time has passed: a raised quota does not show.
func (r *room) relax(need int64, now time.Time, retry time.Duration) {
	low, high := marks(r.segment, r.space.Total)
	if r.space.Free >= max(r.then+need+low, high) || now.Sub(r.when) >= retry {
		r.full = false
	}
}

// spend notes that a write took so many bytes, so that a store alone on its file
// system stops at the mark, not at the next look.
func (r *room) spend(n int64) {
	if r.space.Total > 0 {
		r.space.Free -= n
		r.learn(r.space)
	}
}

// short reports whether there is no room, or nearly none, as far as known.
func (r *room) short() bool { return r.full || r.low }

// stale reports whether statfs is to be asked before a write.
func (r *room) stale(now time.Time) bool {
	return r.short() || !r.asked.IsZero() && now.Sub(r.asked) >= lookEvery
}

// checkRoom refuses writes while the file system is full, and those of blocks
// while it is nearly so: names, footers and merges have what is left. Errors match
// ErrFull.
func (s *Store) checkRoom(need int64, blocks int) error {
	s.mu.Lock()
	stale := s.room.stale(s.opt.Now())
	s.mu.Unlock()
	if stale {
		s.ask()
	}
	return s.refuse(need, blocks)
}

// checkNewFile is checkRoom once a write is about to make a segment.
func (s *Store) checkNewFile(need int64, blocks int) error {
	s.ask()
	return s.refuse(need, blocks)
}

func (s *Store) refuse(need int64, blocks int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.room
	if r.full {
		r.relax(need, s.opt.Now(), s.opt.RetryFull)
	}
	low, _ := marks(r.segment, r.space.Total)
	switch free := r.space.Free >> 20; {
	case r.full:
		return full("read-only", fmt.Errorf(
			"a write under %s found none (%d MiB free): free some, raise the quota, or remove old incarnations", s.opt.Dir, free))
	case r.low && blocks > 0:
		return full("read-only", fmt.Errorf(
			"%d MiB free under %s, below the mark of %d MiB: free some, or remove old incarnations", free, s.opt.Dir, low>>20))
	}
	return nil
}

// ask learns the file system's space, unless another is at it: a statfs that
// hangs takes one thread, and the others go by what is known.
func (s *Store) ask() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.room.asking {
		return
	}
	s.room.asking = true
	var space vfs.Space
	var err error
	pool.Without(&s.mu, func() { space, err = s.fs.Statfs(s.opt.Dir) })
	s.room.asking, s.room.asked = false, s.opt.Now()
	if err == nil {
		s.room.learn(space)
	}
}

// setFull makes the store read-only until there is more room than now.
func (s *Store) setFull() {
	s.ask()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room.fill(s.opt.Now())
}

// ReadOnly reports whether writes are refused because the file system is full, or
// nearly so.
func (s *Store) ReadOnly() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room.short()
}
