package residency

import (
	"sync/atomic"
	"time"

	"cascadekv/tiers"
)

// Ladder is the levels of a rank. It does not change once the store is open.
type Ladder struct {
	Levels []*Level // fastest first: memory, then files
	Mem    []*Level // those in memory
	host   int      // of Mem
}

// Last is the slowest level of memory. Its victims go to files: see also State.LowestLocked.
func (l *Ladder) Last() *Level { return l.Mem[len(l.Mem)-1] }

// Host is the slowest level of memory that the process addresses. What is read from files, other
// ranks and Deep comes there; its region is what peers and clients map; and its capacity bounds what
// leases, and loads ahead of gets, may take.
func (l *Ladder) Host() *Level { return l.Mem[l.host] }

// Near are the levels of memory down to Host: those that blocks are put into, and read in by requests.
func (l *Ladder) Near() []*Level { return l.Mem[:l.host+1] }

// Deep is the level of memory below Host, such as a local disk; nil: there is none. The process can not
// address it, and to read from it may take as long as from files: a get has it read by package load.
func (l *Ladder) Deep() *Level {
	if l.host+1 == len(l.Mem) {
		return nil
	}
	return l.Mem[l.host+1]
}

// InNear reports whether b is in one of Near.
func (l *Ladder) InNear(b *Block) bool { return b.InFirst(l.host + 1) }

// hostOf is the index of the host level among memory tiers; the last one where none can be addressed.
func hostOf(memory []tiers.Memory) int {
	for i := len(memory) - 1; i >= 0; i-- {
		if memory[i].Region() != nil {
			return i
		}
	}
	return len(memory) - 1
}

// DeepUpLocked reports whether there is a deep level that is not left alone with writes.
func (s *State) DeepUpLocked() bool {
	d := s.Deep()
	return d != nil && !d.NoWrites.Lasts()
}

// LowestLocked is the level of memory whose victims go to files: the last one that takes blocks at the moment.
func (s *State) LowestLocked() *Level {
	if d := s.Deep(); s.DeepUpLocked() && d.MayWriteLocked() > 0 {
		return d
	}
	return s.Host()
}

// PinNearLocked pins b in the fastest of Near that has it, or returns nil.
func (s *State) PinNearLocked(b *Block) *View {
	s.Mu.AssertHeld()
	for _, m := range s.Near() {
		if v := s.PinLocked(b, m); v != nil {
			return v
		}
	}
	return nil
}

// Pause is how long a deep level is left alone that failed, or did not answer. It is safe for concurrent use.
type Pause struct {
	state *State
	until atomic.Int64 // by State.Age; 0: it never failed
}

// Begin begins one of ColdRetry. It reports whether there was none for some time.
func (p *Pause) Begin() (first bool) {
	now := p.state.Age(p.state.Now())
	before := p.until.Swap(int64(now + ColdRetry))
	return before == 0 || now > time.Duration(before)+pauseMemory
}

// pauseMemory is how long after a pause another one is the same trouble.
const pauseMemory = time.Minute

// Lasts reports whether there is one now.
func (p *Pause) Lasts() bool { return int64(p.state.Age(p.state.Now())) < p.until.Load() }
