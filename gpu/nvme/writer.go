package nvme

import (
	"context"
	"fmt"
	"time"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// syncEvery is how long names and evictions may wait for the log at most, when no block takes them along.
const syncEvery = time.Second

// writer is the goroutine that writes what was committed.
type writer struct {
	alive context.Context // of what it waits for
	end   context.CancelFunc
	wake  chan struct{}
	stop  chan struct{}
}

func newWriter() writer {
	w := writer{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	w.alive, w.end = context.WithCancel(context.Background())
	return w
}

// passes is what the writer has to do, and did. The tier's mutex guards it.
type passes struct {
	queue   []*stored // to be written
	begun   uint64    // passes
	since   time.Time // when the last of them began
	passed  uint64    // that have ended
	failure error     // why the last of them has made nothing durable
	broken  error     // why new blocks are refused, until then
	until   time.Time
	ended   bool // the writer has
}

// hangsFrom is how long a pass takes that people should know of.
const hangsFrom = 5 * time.Second

func (p *passes) hangs() bool { return p.begun > p.passed && time.Since(p.since) > hangsFrom }

// kick has the writer look at once.
func (t *Tier) kick() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// work writes what was committed, as much at once as there is, until the tier is closed.
func (t *Tier) work() {
	ticker := time.NewTicker(syncEvery)
	defer ticker.Stop()
	for ended := false; !ended; {
		select {
		case <-t.wake:
		case <-ticker.C:
			if t.isClean() {
				continue
			}
		case <-t.stop:
			ended = true
		}
		for t.pass() && ended && t.alive.Err() == nil {
		}
	}
	defer t.lock()()
	t.mu.ended = true
	t.wakeLocked()
}

func (t *Tier) isClean() bool {
	defer t.lock()()
	return t.mu.durable >= t.mu.seq
}

// passFiles is how many GPU files one pass writes, about: so few that a slow disk is seen to make progress, and that
// memory comes free in time for those who wait for it.
const passFiles = 32

// batchLocked takes the blocks of the next pass out of the queue.
func (t *Tier) batchLocked() (batch []*stored) {
	files := int64(0)
	for len(t.mu.queue) > 0 && files < passFiles {
		b := t.mu.queue[0]
		files += t.files(b.size())
		batch = append(batch, b)
		t.mu.queue = t.mu.queue[1:]
	}
	if len(t.mu.queue) == 0 {
		t.mu.queue = nil
	}
	return batch
}

// pass makes changes durable: all until now, or until the first block that is left for the next pass. It reports whether
// there is one.
func (t *Tier) pass() (more bool) {
	t.mu.Lock()
	upto, batch := t.mu.seq, t.batchLocked()
	if len(t.mu.queue) > 0 {
		upto, more = t.mu.queue[0].seq-1, true
	}
	t.mu.begun, t.mu.since = t.mu.begun+1, time.Now()
	t.mu.Unlock()
	err := t.write(batch)
	failed := t.store.Sync(t.alive)
	if failed != nil {
		failed = fmt.Errorf("%s: %w", Name, failed)
		err = failed
	}
	defer t.lock()()
	t.mu.passed = t.mu.begun
	switch t.mu.failure = failed; {
	case failed != nil:
	case t.mu.lost(): // more than is kept came meanwhile
		t.kick()
	default:
		t.mu.durable = max(t.mu.durable, upto)
	}
	if more {
		t.kick()
	}
	if err != nil {
		t.mu.broken, t.mu.until = err, time.Now().Add(t.o.brokenFor)
		t.counts.breaks.Add(1)
	}
	t.wakeLocked()
	return more
}

// write writes blocks, and has the store register them. Those that it does not have then are gone. The error
// is one of them.
func (t *Tier) write(batch []*stored) error {
	batch = t.wanted(batch)
	ids, owners := []block.ID{}, make([]int, len(batch)) // first part of each
	var slots []int
	var sizes []int64
	for i, b := range batch {
		owners[i] = len(ids)
		for part := range t.files(b.size()) {
			ids = append(ids, b.stay.part(part))
			slots = append(slots, b.at+int(part))
			sizes = append(sizes, t.partSize(b.size(), part))
		}
	}
	if len(batch) == 0 {
		return nil
	}
	err := t.putParts(ids, slots, sizes)
	if t.alive.Err() != nil { // the disk may still read the memory: nothing of it is used again
		return err
	}
	owners = append(owners, len(ids))
	defer t.lock()()
	for i, b := range batch {
		own := ids[owners[i]:owners[i+1]]
		b.users--
		if t.store.Has(own) == len(own) {
			b.written = true
			if b.freed {
				t.removeParts(b)
			}
			t.freeLocked(b)
			continue
		}
		for _, id := range own {
			t.store.Remove(id)
		}
		if err == nil {
			err = fmt.Errorf("%s: %w: block %v is not in the store", Name, tiers.ErrUnavailable, b.info.ID)
		}
		t.counts.lost.Add(1)
		t.forgetLocked(b, err)
		t.freeLocked(b)
	}
	return err
}

// wanted leaves out blocks that are gone already.
func (t *Tier) wanted(batch []*stored) (left []*stored) {
	defer t.lock()()
	for _, b := range batch {
		if !b.gone {
			left = append(left, b)
			continue
		}
		b.users--
		t.freeLocked(b)
	}
	return left
}

// size does not change.
func (b *stored) size() int64 { return int64(len(b.mem)) }

// putParts puts parts of blocks into the store.
func (t *Tier) putParts(ids []block.ID, slots []int, sizes []int64) error {
	if len(ids) == 0 {
		return nil
	}
	p, err := t.store.Reserve(t.alive, ids)
	if err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	written := p.StoreAll(t.alive, slots, sizes)
	_, quiet, err := p.Commit(t.alive)
	select {
	case <-quiet:
	case <-t.alive.Done():
	}
	if err == nil {
		err = written
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", Name, err)
	}
	return err
}
