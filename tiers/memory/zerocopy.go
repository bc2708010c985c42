package memory

import (
	"time"

	"cascadekv/internal/arena"
	"cascadekv/internal/fault"
)

const (
	// renewPause is how long a room whose new memory was refused is left alone.
	renewPause = time.Second

	// renewQuiet is how long nobody must have asked for room for lent rooms to
	// get new memory: the kernel clears it, which takes a core as long as a
	// block takes to arrive.
	renewQuiet = 10 * time.Millisecond

	// renewShort is the part of all memory below which what is free is so short
	// that rooms get new memory as they come.
	renewShort = 8
)

// ZeroCopy implements tiers.Pin.
func (p *pin) ZeroCopy() bool {
	t := p.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.zeroCopy && !p.done && t.alloc.MarkLent(p.slot.offset, p.slot.info.Size)
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

// renews reports whether any room is on its way back. The caller holds the mutex.
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

// renew gives lent rooms new memory in the background, so that who asks for room
// finds it ready.
func (t *Tier) renew() {
	defer fault.Guard()()
	defer close(t.renewDone)
	for {
		select {
		case <-t.stop:
			return
		case <-t.wake:
		}
		asked := uint64(0)
		for pause := t.renewSome(&asked); pause > 0; pause = t.renewSome(&asked) {
			select {
			case <-t.stop:
				return
			case <-time.After(pause):
			}
		}
	}
}

// renewSome renews lent rooms as long as that is in nobody's way, and returns when
// to look again; 0 when there are none. asked is how often somebody had asked
// for room at the last look.
func (t *Tier) renewSome(asked *uint64) (pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.lent) > 0 {
		if t.asked != *asked && t.alloc.Free() >= t.alloc.Size()/renewShort {
			*asked = t.asked
			return renewQuiet
		}
		if !t.renewOne() { // the file system is full: perhaps not for long
			return renewPause
		}
	}
	return 0
}
