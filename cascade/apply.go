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
			if b.from != nil {
				b.from = nil // the catalogue has the name as it was
				s.placementChangedLocked(b)
			} else {
				s.enqueuePublishLocked(c.Name) // alone: its block may have very many names
			}
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

// placementChangedLocked keeps the counters, and what other ranks know of all
// names of b, in step with b. It is called after every change of where b is and
// of its id.
func (s *Store) placementChangedLocked(b *blockState) {
	s.enqueuePublishAllLocked(b)
	s.accountLocked(b)
}

// accountLocked keeps the counters of dirty and pending blocks in step with b.
func (s *Store) accountLocked(b *blockState) {
	named := len(b.Names()) > 0 && b.InAny()
	dirty, pending := named && !b.hasLowerCopy(), named && b.Info.ID.IsProvisional()
	count := func(was *bool, is bool, blocks *int, bytes *int64) {
		if *was == is {
			return
		}
		*was = is
		if is {
			*blocks++
			*bytes += b.Info.Size
		} else {
			*blocks--
			*bytes -= b.Info.Size
		}
	}
	count(&b.countedDirty, dirty, &s.mu.stats.DirtyBlocks, &s.mu.stats.DirtyBytes)
	count(&b.countedPending, pending, &s.mu.stats.PendingIDs, &s.mu.stats.PendingBytes)
	s.syncColdHoldLocked(b)
}

// updatePoliciesLocked passes what policies may know of b to those that rank it.
func (s *Store) updatePoliciesLocked(b *blockState) {
	for t, m := range s.mem {
		if b.In(t) {
			m.policy.Update(b.at[t].node, s.metaLocked(b))
		}
	}
	if b.below.ranked {
		s.mu.room.policy.Update(b.below.node, s.metaLocked(b))
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
