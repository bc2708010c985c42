package residency

import (
	"time"

	"cascadekv/cascade/estimate"
)

const (
	// PrefetchFor is how long a block that was brought here ahead of its get waits for that. The
	// clients that look up get what they found at once or never.
	PrefetchFor = 2 * time.Second

	// prefetchBlocks and prefetchBytes, and one part in prefetchShare of memory, bound what of this rank's own files
	// waits there for its gets: it has taken the room of what the policy knows better, and none of it may have to
	// leave for the next.
	prefetchBlocks = 32
	prefetchBytes  = 64 << 20
	prefetchShare  = 4
)

// Prefetched is what was brought here ahead of its gets, because its chain was looked up: how often it is
// asked for then, and the blocks of this rank's own files that wait for that. Guarded by State.Mu, but for Odds.
type Prefetched struct {
	Odds estimate.Odds // that what is brought ahead is asked for

	state *State
	until map[*Block]time.Time
	bytes int64
}

// Pays reports whether to bring ahead what was looked for without a word of what comes next: while at
// least half of what is brought ahead is asked for. It needs no mutex.
func (p *Prefetched) Pays() bool { return p.Odds.Of(p.state.Age(p.state.Now())) >= .5 }

// RoomLocked reports whether another block may be brought from this rank's files.
func (p *Prefetched) RoomLocked() bool {
	p.state.Mu.AssertHeld()
	memory, _ := p.state.Host().Occupancy()
	return len(p.until) < prefetchBlocks && p.bytes < min(prefetchBytes, memory/prefetchShare)
}

// WaitsLocked reports whether a block waits for its get. One that has left memory since is not brought again meanwhile:
// there was no room for it.
func (p *Prefetched) WaitsLocked(b *Block) bool {
	p.state.Mu.AssertHeld()
	_, waits := p.until[b]
	return waits
}

// AddLocked adds a block that is on its way from this rank's files, and does not wait yet.
func (p *Prefetched) AddLocked(b *Block) {
	p.state.Mu.AssertHeld()
	if p.until == nil {
		p.until = map[*Block]time.Time{}
	}
	p.until[b] = p.state.Now().Add(PrefetchFor)
	p.bytes += b.Info.Size
	p.state.Count.Stats.Prefetched++
}

// endLocked ends the wait of a block, if it waits, and counts whether it was asked for.
func (p *Prefetched) endLocked(b *Block, asked bool) {
	if _, is := p.until[b]; !is {
		return
	}
	delete(p.until, b)
	p.bytes -= b.Info.Size
	part := 0.0
	if asked {
		part = 1
		p.state.Count.Stats.PrefetchHits++
	} else {
		p.state.Count.Stats.PrefetchWasted++
	}
	p.Odds.Note(p.state.Age(p.state.Now()), part)
}

// SweepLocked ends the wait of the blocks that nobody asked for in time.
func (p *Prefetched) SweepLocked(now time.Time) {
	p.state.Mu.AssertHeld()
	for b, until := range p.until {
		if !now.Before(until) {
			p.endLocked(b, false)
		}
	}
}

// UsedLocked records that b is got.
func (q *Requests) UsedLocked(b *Block) {
	b.Used = true
	q.state.Cold.UsedLocked(b)
	q.Prefetched.endLocked(b, true)
}
