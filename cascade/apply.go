package cascade

import (
	"cascadekv/cascade/events"
	"cascadekv/cascade/names"
	"cascadekv/internal/block"
)

// applyLocked carries out what the last operation of names has changed, in
// order: in the tiers' records, the policies, the shared index, the event log,
// the publishing queue and the counters. It is the only place that does.
func (s *Store) applyLocked() {
	for c, ok := s.mu.names.Next(); ok; c, ok = s.mu.names.Next() {
		b := ownerOf(c.Block)
		switch c.Kind {
		case names.Bound:
			s.enqueuePublishLocked(c.Name)
			s.accountLocked(b)
			s.updatePoliciesLocked(b)
			s.showLocked(c.Name)
		case names.Unbound:
			s.enqueuePublishLocked(c.Name)
			s.accountLocked(b)
			s.updatePoliciesLocked(b)
		case names.Renewed:
			s.showLocked(c.Name)
		case names.Gone:
			s.hideLocked(c.Name)
		case names.Link:
			s.linkLocked(b, c.Name.Record())
		case names.Unlink:
			s.unlinkLocked(b, *c.Record)
		case names.Stored:
			s.events.Add(events.Event{Kind: events.Stored, Namespace: c.Name.Namespace(), Key: c.Name.Key(), Size: b.Info.Size})
		case names.Removed:
			s.events.Add(events.Event{Kind: events.Removed, Namespace: c.Name.Namespace(), Key: c.Name.Key(), Size: b.Info.Size})
		case names.Hold:
			for range c.N {
				s.holdLocked(b, int(c.Level))
			}
		case names.Release:
			for range c.N {
				s.releaseLocked(b, int(c.Level))
			}
		case names.Needed:
			s.syncColdHoldLocked(b)
		case names.Moved:
			s.placementChangedLocked(b)
			s.showAllLocked(b)
		case names.Empty:
			s.forgetLocked(b)
		}
	}
}

// linkLocked writes a name into every tier that holds its block, unlinkLocked
// withdraws it as of its Seq. A tier that can not is left without: it then loses
// the name at a crash, which is a miss.
func (s *Store) linkLocked(b *blockState, n block.Name) {
	for t, m := range s.mem {
		if b.In(t) {
			s.noteLocked(m, m.tier.Link(b.Info.ID, n))
		}
	}
	if b.cold {
		s.linkColdLocked(b, n)
	}
}

func (s *Store) linkColdLocked(b *blockState, n block.Name) {
	s.noteLinkLocked(s.cold.Link(b.Info.ID, n))
	b.linkSeq = s.mu.linkSeq
}

func (s *Store) unlinkLocked(b *blockState, n block.Name) {
	for t, m := range s.mem {
		if b.In(t) {
			s.noteLocked(m, m.tier.Unlink(b.Info.ID, n))
		}
	}
	if b.cold {
		s.noteLinkLocked(s.cold.Unlink(b.Info.ID, n))
	}
}
