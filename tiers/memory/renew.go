package memory

import (
	"time"

	"cascadekv/internal/arena"
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

// renewLaterLocked has a lent room that nothing is in come back in the background.
func (sp *space) renewLaterLocked(room arena.Extent) {
	sp.mu.lent = append(sp.mu.lent, room)
	select {
	case sp.wake <- struct{}{}:
	default:
	}
}

// renewsLocked reports whether any room is on its way back.
func (sp *space) renewsLocked() bool { return len(sp.mu.lent)+sp.mu.renewing > 0 }

// renewOneLocked gives a lent room new memory and then back; false when there is none,
// or no memory. The lock is free meanwhile.
func (sp *space) renewOneLocked() bool {
	n := len(sp.mu.lent)
	if n == 0 || sp.mu.closed {
		return false
	}
	room := sp.mu.lent[n-1]
	sp.mu.lent = sp.mu.lent[:n-1]
	sp.mu.renewing++
	sp.mu.Unlock()
	err := sp.arena.Replace(sp.fileOffset(room.Offset), arena.RoundSize(room.Size))
	sp.mu.Lock()
	sp.mu.renewing--
	if err == nil {
		sp.mu.alloc.Restore(room.Offset, room.Size)
		sp.mu.alloc.Release(room.Offset, room.Size)
	} else {
		sp.mu.lent = append(sp.mu.lent, room)
	}
	sp.grew.Broadcast()
	return err == nil
}

// renew gives lent rooms new memory in the background, so that who asks for room
// finds it ready.
func (sp *space) renew() {
	for {
		select {
		case <-sp.stop:
			return
		case <-sp.wake:
		}
		asked := uint64(0)
		for pause := sp.renewSome(&asked); pause > 0; pause = sp.renewSome(&asked) {
			if !sp.pause(pause) {
				return
			}
		}
	}
}

// renewSome renews lent rooms as long as that is in nobody's way, and returns when
// to look again; 0 when there are none. asked is how often somebody had asked
// for room at the last look.
func (sp *space) renewSome(asked *uint64) (pause time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for len(sp.mu.lent) > 0 {
		if sp.mu.asked != *asked && sp.mu.alloc.Free() >= sp.mu.alloc.Size()/renewShort {
			*asked = sp.mu.asked
			return renewQuiet
		}
		if !sp.renewOneLocked() { // the file system is full: perhaps not for long
			return renewPause
		}
	}
	return 0
}
