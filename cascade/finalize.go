package cascade

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/block"
	"cascadekv/internal/fault"
)

// pendingQueue lists blocks without an id, oldest first. Guarded by the
// store's mutex; blocks that got their id otherwise are skipped when popped.
type pendingQueue struct {
	queue []*blockState
	wake  chan struct{}
}

func (q *pendingQueue) push(b *blockState) {
	q.queue = append(q.queue, b)
	wake(q.wake)
}

func (q *pendingQueue) pop() *blockState {
	for len(q.queue) > 0 {
		b := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		if b.countedPending {
			return b
		}
	}
	q.queue = nil
	return nil
}

const (
	// hashStep is hashed between two looks at whether requests came in:
	// about 40 µs of work.
	hashStep = 64 << 10

	// quietFor is how long no request must have come for the finalizer to
	// start: a client that waits for one answer before it asks again is busy
	// in between too.
	quietFor = 10 * time.Millisecond

	// quietMost is how long the finalizer looks away when it found no quiet
	// several times, each time for twice as long: a look costs requests in
	// flight their place on the core.
	quietMost = 80 * time.Millisecond

	// idleNice is the niceness of the finalizer's thread, so that it yields
	// to other processes too: to the engine above all.
	idleNice = 19
)

// finalizeInBackground computes the ids of acknowledged blocks while nothing
// else is going on (design.md §4).
func (s *Store) finalizeInBackground(ctx context.Context) {
	defer fault.Guard()()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, niceness and all
	// Without the right to it the finalizer runs at normal priority.
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), idleNice)
	for {
		b := s.nextPending()
		if b == nil {
			select {
			case <-s.pending.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if !s.finalizeWhenQuiet(ctx, b) {
			return
		}
	}
}

func (s *Store) nextPending() *blockState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending.pop()
}

// finalizeWhenQuiet hashes b piece by piece, only while there are no requests,
// and gives it its id; false when ctx ended. While it waits it holds nothing: a
// store that is never quiet must still be able to evict b, and the chain that
// leads to it.
func (s *Store) finalizeWhenQuiet(ctx context.Context, b *blockState) bool {
	h := block.NewHasher(s.bits)
	for done := int64(0); done < b.Info.Size; {
		for pause := quietFor; !s.quiet(); pause = min(2*pause, quietMost) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return false
			}
		}
		n, pending := s.hashWhileQuiet(h, b, done)
		if !pending {
			return true
		}
		done += n
		if ctx.Err() != nil {
			return false
		}
	}
	s.finalized(b, h.ID())
	return true
}

// hashWhileQuiet hashes the bytes of b from an offset on, up to the first
// request, and returns how many; false when b needs no id any more.
func (s *Store) hashWhileQuiet(h *block.Hasher, b *blockState, from int64) (n int64, pending bool) {
	v := s.pinPending(b)
	if v == nil {
		return 0, false
	}
	defer v.Release()
	for p := v.bytes[from:]; len(p) > 0 && s.quiet(); {
		step := min(len(p), hashStep)
		h.Write(p[:step])
		p = p[step:]
		n += int64(step)
	}
	return n, true
}

func (s *Store) pinPending(b *blockState) *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.countedPending {
		return nil
	}
	if v := s.pinFastestLocked(b); v != nil {
		return v.background()
	}
	return nil
}

// begin and end bracket a request's stage or view.
func (s *Store) begin() { s.active.Add(1) }

func (s *Store) end() {
	s.active.Add(-1)
	s.lastEnd.Store(time.Now().UnixNano())
}

// quiet reports whether there has been no request for a while.
func (s *Store) quiet() bool {
	return s.active.Load() == 0 && time.Now().UnixNano()-s.lastEnd.Load() > int64(quietFor)
}

// finalizeID gives a viewed block its id now, if it has none: it is about to
// leave the rank.
func (s *Store) finalizeID(v *View) {
	s.mu.Lock()
	pending := v.block.Info.ID.IsProvisional()
	s.mu.Unlock()
	if pending {
		s.finalized(v.block, block.Sum(s.bits, v.bytes))
	}
}

// finalized gives b its id. If a block with that id is stored already, the two
// become one.
func (s *Store) finalized(b *blockState, id BlockID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.Info.ID.IsProvisional() || s.mu.blocks[b.Info.ID] != b {
		return
	}
	if first := s.mu.blocks[id]; first != nil {
		s.mergeLocked(b, first)
		return
	}
	for t, m := range s.mem {
		if b.In(t) {
			s.noteLocked(m, m.tier.Rename(b.Info.ID, id))
		}
	}
	delete(s.mu.blocks, b.Info.ID)
	b.Info.ID = id
	s.mu.blocks[id] = b
	s.placementChangedLocked(b)
	s.updatePoliciesLocked(b)
	s.showAllLocked(b) // its record may lie elsewhere
}

// mergeLocked moves the names of b, just completed, to the block first that has
// the same bytes. Where only b is in memory, first takes over b's place there.
func (s *Store) mergeLocked(b, first *blockState) {
	first.busy++
	for t, m := range s.mem {
		if !b.In(t) || first.In(t) {
			continue
		}
		if err := m.tier.Rename(b.Info.ID, first.Info.ID); err != nil {
			s.noteLocked(m, err)
			continue
		}
		s.leaveLocked(b, m, false)
		s.enterLocked(first, m)
	}
	for len(b.Names()) > 0 {
		n := b.Names()[0]
		s.countDuplicateLocked(n, first.isAlias(n, n.Space().Name()))
		s.mu.names.Move(n, &first.Block, s.now())
		s.applyLocked()
		s.holdLeasesOfLocked(n)
	}
	first.busy--
	s.forgetLocked(b)
}
