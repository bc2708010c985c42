package memory

import (
	"time"

	"cascadekv/internal/arena"
	"cascadekv/tiers"
)

var _ tiers.Lender = (*pin)(nil)

// renewPause is how long a room whose new memory was refused is left alone.
const renewPause = time.Second

// Lend implements tiers.Lender.
func (p *pin) Lend() bool {
	t := p.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lends && !p.done && t.alloc.Lend(p.slot.offset, p.slot.info.Size)
}

// free gives the room of a payload back; one that is lent, once it has new
// memory. The caller holds the mutex.
func (t *Tier) free(offset, size int64) {
	if !t.alloc.IsLent(offset, size) {
		t.alloc.Release(offset, size)
		return
	}
	t.renewLater(arena.Extent{Offset: offset, Size: size})
}

// renewLater has a lent room that nothing is in come back in the background. The
// caller holds the mutex.
func (t *Tier) renewLater(room arena.Extent) {
	t.lent = append(t.lent, room)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// renews tells whether any room is on its way back. The caller holds the mutex.
func (t *Tier) renews() bool { return len(t.lent)+t.renewing > 0 }

// renewOne gives a lent room new memory and then back; false when there is none,
// or no memory. The caller holds the mutex, and not meanwhile.
func (t *Tier) renewOne() bool {
	n := len(t.lent)
	if n == 0 || t.closed {
		return false
	}
	room := t.lent[n-1]
	t.lent = t.lent[:n-1]
	t.renewing++
	t.mu.Unlock()
	err := t.arena.Replace(t.fileOffset(room.Offset), arena.RoundSize(room.Size))
	t.mu.Lock()
	t.renewing--
	if err == nil {
		t.alloc.Restore(room.Offset, room.Size)
		t.alloc.Release(room.Offset, room.Size)
	} else {
		t.lent = append(t.lent, room)
	}
	t.grew.Broadcast()
	return err == nil
}

// renew gives lent rooms new memory as they come, so that who asks for room finds
// it ready.
func (t *Tier) renew() {
	defer close(t.renewDone)
	for {
		select {
		case <-t.stop:
			return
		case <-t.wake:
		}
		for !t.renewAll() { // the file system is full: perhaps not for long
			select {
			case <-t.stop:
				return
			case <-time.After(renewPause):
			}
		}
	}
}

// renewAll tells whether no lent room is left.
func (t *Tier) renewAll() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.renewOne() {
	}
	return len(t.lent) == 0
}
