package residency

import (
	"math"
	"time"

	"cascadekv/cascade/policy"
)

// ColdRetry is how long a cold tier that refused a write is left alone.
const ColdRetry = 5 * time.Second

// Batch is the write to the cold tier that is under way.
type Batch struct {
	InFlight bool
	Clean    int // victims that are clean, and colder than its blocks
}

// Writes are what the writer to the cold tier is asked for, and how far it is.
// Guarded by State.Mu.
type Writes struct {
	Batch          Batch     // on its way to the cold tier
	CleanRequested bool      // somebody waits for the cleaner
	SyncRequested  bool      // somebody waits for the cold tier to be synced
	LinkSeq        uint64    // changes of names that the cold tier has been given
	SyncedSeq      uint64    // of them, those that are durable
	ColdDown       time.Time // no writes to the cold tier before this
	Demoted        int       // victims of Ladder.Host that Ladder.Deep has
	Demoting       int       // on their way there
	Drains         int       // under way: until they end no write has a budget
}

// EnoughClean clean victims before the first dirty one are enough; below fewClean
// the cleaner looks again.
const (
	EnoughClean = 64
	fewClean    = EnoughClean / 2
)

// ColdUpLocked reports whether the cold tier takes writes at the moment.
func (s *State) ColdUpLocked() bool {
	s.Mu.AssertHeld()
	return s.Cold != nil && !s.Now().Before(s.Mu.Writes.ColdDown)
}

// WakeCleanerLocked wakes the cleaner; requested: somebody waits for it.
func (s *State) WakeCleanerLocked(requested bool) {
	s.Mu.AssertHeld()
	s.Mu.Writes.CleanRequested = s.Mu.Writes.CleanRequested || requested
	Wake(s.CleanerWake)
}

// NudgeCleanerLocked wakes the cleaner when the lowest memory tier is fuller than
// it should be and few of its next victims are known to be clean, and likewise who demotes
// to the deep one.
func (s *State) NudgeCleanerLocked() {
	if s.ColdUpLocked() && !s.Mu.Writes.Batch.InFlight && s.Mu.Writes.Batch.Clean < fewClean && CrowdedLocked(s) {
		s.WakeCleanerLocked(false)
	}
	if s.Deep() != nil && s.Mu.Writes.Demoted < fewClean && crowded(s, s.Host()) {
		Wake(s.DemoterWake)
	}
}

// DemotesLocked reports whether victims of the host level are to be copied to the deep one ahead of need, within its budget.
func DemotesLocked(s *State) bool {
	return !s.Mu.Closed && s.DeepUpLocked() && crowded(s, s.Host())
}

// FilesLocked is what the cold tier takes at the moment of the lowest memory tier's victims.
func FilesLocked(s *State) policy.Files {
	batch := s.Mu.Writes.Batch
	return policy.Files{
		There: s.Cold != nil, Up: s.ColdUpLocked(), Busy: batch.InFlight && batch.Clean <= 0,
		Spent: s.Cold != nil && s.Cold.MayWriteLocked() <= 0,
	}
}

// MayWriteLocked is how many bytes may be written to a level at once, by its budget; 0 or
// less: none for now. While all is to be written nothing is dropped for want of a budget.
func (m *Level) MayWriteLocked() int64 {
	if m.state.Mu.Writes.Drains > 0 {
		return math.MaxInt64
	}
	return m.Writes.Left()
}

// UnworthyLocked returns why b is not to be written to the cold tier when it must leave memory:
// too few requests asked for it, by Limits.StoreThreshold and StorePromptOnly. What an earlier run left in memory is
// worth it: nobody counted those requests; and what somebody was promised, and all of it until a drain has ended.
func UnworthyLocked(s *State, b *Block) policy.Loss {
	l := s.Limits.Load()
	switch {
	case b.Asked == 0 || b.Leased() || s.Mu.Writes.Drains > 0:
		return policy.NoLoss
	case int(b.Asked) < l.StoreThreshold:
		return policy.Unasked
	case l.StorePromptOnly && b.Generated && b.Asked < 2: // its put is one
		return policy.Generated
	}
	return policy.NoLoss
}

// CrowdedLocked reports whether the lowest memory tier is fuller than Limits.CleanAbove.
func CrowdedLocked(s *State) bool { return crowded(s, s.LowestLocked()) }

func crowded(s *State, m *Level) bool {
	capacity, used := m.Occupancy()
	return float64(used) > float64(capacity)*s.Limits.Load().CleanAbove
}

// Occupancy is how much a memory tier may hold, as Options.Capacity has it, and how much it
// holds, in bytes.
func (m *Level) Occupancy() (capacity, used int64) {
	u := m.Memory.Usage()
	if m.state.Capacity > 0 && m.Index == 0 {
		return m.state.Capacity, u.Payload
	}
	return u.Capacity, u.Used
}

// NoteLinkLocked records the outcome of a Link or Unlink of the cold tier. What the
// tier merely buffers is synced by the cleaner; a block of memory with such a name
// stays until then: see policy.Decide.
func (s *State) NoteLinkLocked(err error) {
	s.Mu.AssertHeld()
	s.NoteColdLocked(err)
	if err != nil {
		return
	}
	if s.Mu.Writes.LinkSeq == s.Mu.Writes.SyncedSeq {
		s.WakeCleanerLocked(false)
	}
	s.Mu.Writes.LinkSeq++
}

// RequestSyncLocked makes the cleaner sync now.
func (s *State) RequestSyncLocked() {
	s.Mu.Writes.SyncRequested = true
	s.WakeCleanerLocked(false)
}
