package residency

import (
	"cascadekv/cascade/events"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
)

// ApplyLocked carries out what the last operation of names has changed, in
// order: in the tiers' records, the policies, the shared index, the event log,
// the publishing queue and the counters. It is the only place that does.
func (s *State) ApplyLocked() {
	s.Mu.AssertHeld()
	for c, ok := s.Mu.Names.Next(); ok; c, ok = s.Mu.Names.Next() {
		b := ownBlock(c.Block)
		switch c.Kind {
		case names.Bound:
			s.Watch.EnqueuePublishLocked(c.Name)
			s.accountLocked(b)
			s.UpdatePoliciesLocked(b)
			s.Watch.ShowLocked(c.Name)
		case names.Unbound:
			s.Watch.EnqueuePublishLocked(c.Name)
			s.accountLocked(b)
			s.UpdatePoliciesLocked(b)
		case names.Renewed:
			s.Watch.ShowLocked(c.Name)
			s.Watch.EnqueuePublishLocked(c.Name) // alone: its block may have very many names
		case names.Gone:
			s.Watch.HideLocked(c.Name)
		case names.Link:
			s.linkLocked(b, c.Name)
		case names.Unlink:
			s.UnlinkLocked(b, *c.Record)
		case names.Stored:
			s.Logs.Events.Add(events.Event{Kind: events.Stored, Namespace: c.Name.Namespace(), Key: c.Name.Key(), Size: b.Info.Size})
		case names.Removed:
			s.Logs.Events.Add(events.Event{Kind: events.Removed, Namespace: c.Name.Namespace(), Key: c.Name.Key(), Size: b.Info.Size})
		case names.Hold:
			for range c.N {
				s.HoldLocked(b, int(c.Level))
			}
		case names.Release:
			for range c.N {
				s.ReleaseLocked(b, int(c.Level))
			}
		case names.Needed:
			s.Cold.SyncHoldLocked(b)
		case names.Moved:
			s.PlacementChangedLocked(b)
			s.Watch.ShowAllLocked(b)
		case names.Empty:
			s.ForgetLocked(b)
		}
	}
}

// PlacementChangedLocked keeps the counters, and what is published of all names of
// b, in step with b. It is called after every change of where b is and
// of its id.
func (s *State) PlacementChangedLocked(b *Block) {
	s.Mu.AssertHeld()
	s.Watch.EnqueuePublishAllLocked(b)
	s.accountLocked(b)
}

// accountLocked keeps the counters of dirty and pending blocks in step with b.
func (s *State) accountLocked(b *Block) {
	named := len(b.Names()) > 0 && b.InAny()
	dirty, pending := named && !b.HasLowerCopy(), named && b.Info.ID.IsProvisional()
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
	count(&b.CountedDirty, dirty, &s.Count.Stats.DirtyBlocks, &s.Count.Stats.DirtyBytes)
	count(&b.CountedPending, pending, &s.Count.Stats.PendingIDs, &s.Count.Stats.PendingBytes)
	s.Cold.SyncHoldLocked(b)
}

// UpdatePoliciesLocked passes the Meta of b to the policies that rank it.
func (s *State) UpdatePoliciesLocked(b *Block) {
	s.Mu.AssertHeld()
	for _, m := range s.Levels {
		if node := m.nodeOf(b); node != policy.NoNode {
			m.Policy.Update(node, s.MetaLocked(b))
		}
	}
}

// linkLocked writes a name into every tier that holds its block. A tier that fails
// is left without: it then loses the name at a crash, which is a miss.
func (s *State) linkLocked(b *Block, n *names.Name) {
	for t, m := range s.Mem {
		if b.In(t) {
			s.NoteLocked(m, m.Memory.Link(b.Info.ID, n.Record()))
		}
	}
	switch {
	case b.Cold:
		s.LinkColdLocked(b, n.Record())
	case b.From != nil:
		s.Cold.linkFromLocked(b, n)
	}
}

// LinkColdLocked writes a name of b, which is there, into the cold tier.
func (s *State) LinkColdLocked(b *Block, n block.Name) {
	s.NoteLinkLocked(s.Cold.Files.Link(b.Info.ID, n))
	b.LinkSeq = s.Mu.Writes.LinkSeq
}

// UnlinkLocked withdraws a name, as of its Seq, from every tier that holds b.
func (s *State) UnlinkLocked(b *Block, n block.Name) {
	for t, m := range s.Mem {
		if b.In(t) {
			s.NoteLocked(m, m.Memory.Unlink(b.Info.ID, n))
		}
	}
	if b.Cold || b.LinkSeq > s.Mu.Writes.SyncedSeq { // a record on its way is in no index that could withdraw it
		s.NoteLinkLocked(s.Cold.Files.Unlink(b.Info.ID, n))
	}
}
