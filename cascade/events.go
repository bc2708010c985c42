package cascade

import (
	"cascadekv/cascade/events"
	"cascadekv/cascade/traffic"
	"cascadekv/internal/block"
)

// Events returns the log of what became readable here, and of what no longer is.
// Names that are bound to another have no events: they are readable as that one
// is. An expired name is removed by Sweep. Nothing is kept before the first call of
// Since.
func (s *Store) Events() *events.Log[events.Event] { return s.state.Logs.Events }

// Traffic returns the log of what clients ask for and put. It is off unless somebody
// asked within traffic.Idle. Copies and look-ups by the shared index are in it by themselves, commands
// by NoteTraffic.
func Traffic(s *Store) *events.Log[traffic.Command] { return s.state.Logs.Traffic }

// NoteTraffic adds a command to the log of traffic, behind the look-ups by the shared index that
// came before it. If it names no parent of its first key, that is the one under which this rank
// has the key.
func NoteTraffic(s *Store, c traffic.Command, first []byte) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	s.index.SweepTouchesLocked()
	if c.Parent == 0 {
		if n := s.state.LookupLocked(c.Namespace, string(first)); n != nil && n.ParentKey() != "" {
			c.Parent = block.Fingerprint(c.Namespace, n.ParentKey())
		}
	}
	s.state.Logs.Traffic.Add(c)
}
