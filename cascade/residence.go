package cascade

import (
	"encoding/binary"
	"errors"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// maxMemory bounds the memory tiers of a store: HBM or its stand-in, and shm.
const maxMemory = 2

// memTier is one memory tier with its policy.
type memTier struct {
	order
	index int
	tier  tiers.Memory
	stats TierStats
	junk  []block.ID // corrupt blocks that were pinned when they were found out
}

// order is in which order a tier gives its blocks up.
type order struct {
	policy policy.Policy
	nodes  []*blockState // by policy node
}

// insert tells the policy of b, which entered the tier.
func (o *order) insert(now time.Duration, m policy.Meta, b *blockState) policy.Node {
	node := o.policy.Insert(now, m)
	for int(node) >= len(o.nodes) {
		o.nodes = append(o.nodes, nil)
	}
	o.nodes[node] = b
	return node
}

// remove tells it of one that left.
func (o *order) remove(node policy.Node) {
	o.policy.Remove(node)
	o.nodes[node] = nil
}

// next is the block that the policy gives up next, nil when all are held.
func (o *order) next() *blockState {
	if node, ok := o.policy.Victim(); ok {
		return o.nodes[node]
	}
	return nil
}

// The invariant of residence: in each memory tier t, the holds on a block are
// its busy holds (views, copies, leases) plus the sum, over its names, of
// their resident[t]. So a block with a child in the same tier is no victim,
// and eviction leaves no hole in a chain (design.md §5).

// enterLocked tells policy and chain graph that b's bytes are in memory tier m.
func (s *Store) enterLocked(b *blockState, m *memTier) {
	s.mu.stays++
	b.at[m.index] = place{present: true, node: m.insert(s.age(), s.metaLocked(b), b), stay: s.mu.stays}
	for _, n := range b.names {
		s.holdTimesLocked(b, m.index, n.resident[m.index])
	}
	for _, n := range b.names {
		s.countChildLocked(n, m.index)
		s.holdLeasesOfLocked(n)
	}
	s.placementChangedLocked(b)
	s.showAllLocked(b)
}

// leaveLocked undoes enter. Holds of whatever kind on b in m end with it.
func (s *Store) leaveLocked(b *blockState, m *memTier) {
	node := b.at[m.index].node
	for _, n := range b.names {
		s.uncountChildLocked(n, m.index)
		for _, l := range n.leases {
			s.unholdLeaseLocked(l)
		}
	}
	b.at[m.index] = place{}
	m.remove(node)
	s.placementChangedLocked(b)
	s.showAllLocked(b)
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
	named := len(b.names) > 0 && b.inMemory()
	dirty, pending := named && !b.hasLowerCopy(), named && b.info.ID.IsProvisional()
	count := func(was *bool, is bool, blocks *int, bytes *int64) {
		if *was == is {
			return
		}
		*was = is
		if is {
			*blocks++
			*bytes += b.info.Size
		} else {
			*blocks--
			*bytes -= b.info.Size
		}
	}
	count(&b.countedDirty, dirty, &s.mu.stats.DirtyBlocks, &s.mu.stats.DirtyBytes)
	count(&b.countedPending, pending, &s.mu.stats.PendingIDs, &s.mu.stats.PendingBytes)
	s.syncColdHoldLocked(b)
}

// holdLocked and release keep b from being chosen as a victim of tier t.
func (s *Store) holdLocked(b *blockState, t int)    { s.mem[t].policy.Hold(b.at[t].node) }
func (s *Store) releaseLocked(b *blockState, t int) { s.mem[t].policy.Release(b.at[t].node) }

func (s *Store) holdTimesLocked(b *blockState, t int, times int32) {
	for range times {
		s.holdLocked(b, t)
	}
}

// countChildLocked counts n among its parent's children that are in tier t.
func (s *Store) countChildLocked(n *name, t int) {
	if p := n.parent; p != nil {
		p.resident[t]++
		if p.block != nil && p.block.at[t].present {
			s.holdLocked(p.block, t)
		}
	}
}

func (s *Store) uncountChildLocked(n *name, t int) {
	if p := n.parent; p != nil {
		p.resident[t]--
		if p.block != nil && p.block.at[t].present {
			s.releaseLocked(p.block, t)
		}
	}
}

// metaLocked is what policies are told of b.
func (s *Store) metaLocked(b *blockState) policy.Meta {
	return policy.Meta{
		Fingerprint: binary.LittleEndian.Uint64(b.info.ID[:]) ^ binary.LittleEndian.Uint64(b.info.ID[24:]),
		Size:        b.info.Size,
		Refs:        len(b.names),
		Prefix:      b.prefixes > 0,
		Depth:       b.depth,
	}
}

func (s *Store) updatePoliciesLocked(b *blockState) {
	for t, m := range s.mem {
		if b.at[t].present {
			m.policy.Update(b.at[t].node, s.metaLocked(b))
		}
	}
	if b.below.ranked {
		s.mu.room.policy.Update(b.below.node, s.metaLocked(b))
	}
}

// age is the time policies live in.
func (s *Store) age() time.Duration { return s.now().Sub(s.born) }

// dropLocked takes b's bytes out of memory tier m. The caller knows that
// nothing pins them there.
func (s *Store) dropLocked(b *blockState, m *memTier) {
	s.leaveLocked(b, m)
	s.noteLocked(m, m.tier.Evict(b.info.ID))
}

// forgetLocked removes a block that has no names from everywhere, or leaves it
// to the last of those who are busy with it.
func (s *Store) forgetLocked(b *blockState) {
	if b.busy > 0 || len(b.names) > 0 {
		return
	}
	for t, m := range s.mem {
		if b.at[t].present {
			s.dropLocked(b, m)
		}
	}
	if b.cold {
		s.leaveColdLocked(b)
		s.noteColdLocked(s.cold.Evict(b.info.ID))
	}
	s.removeLocked(b)
}

// removeLocked takes b out of the index of blocks.
func (s *Store) removeLocked(b *blockState) {
	if s.mu.blocks[b.info.ID] == b {
		delete(s.mu.blocks, b.info.ID)
		s.mu.stats.BytesStored -= b.info.Size
	}
}

// vanishLocked withdraws all names of a block whose bytes are nowhere any more.
func (s *Store) vanishLocked(b *blockState) {
	for len(b.names) > 0 {
		n := b.names[len(b.names)-1]
		s.endLeasesLocked(n)
		if b.from == nil {
			s.invalidateLocked(nameID{n.entry.Namespace, n.entry.Key}, n.put)
		}
		s.detachLocked(n)
		s.logRemovedLocked(n, b)
		s.hideLocked(n)
		n.delist()
		n.prune()
		s.leaveSpaceLocked(n.space)
	}
	s.forgetLocked(b)
}

// corruptLocked withdraws b from memory tier m because its bytes fail their
// checksum. Bytes that somebody still has pinned are renamed out of the way.
func (s *Store) corruptLocked(b *blockState, m *memTier) {
	if !b.at[m.index].present {
		return
	}
	s.mu.stats.Corrupt++
	s.leaveLocked(b, m)
	err := m.tier.Evict(b.info.ID)
	if errors.Is(err, tiers.ErrPinned) {
		junk := s.provisionalLocked()
		if err = m.tier.Rename(b.info.ID, junk); err == nil {
			m.junk = append(m.junk, junk)
		}
	}
	s.noteLocked(m, err)
	if !b.cold && !b.inMemory() {
		s.vanishLocked(b)
	}
}

// sweepJunkLocked drops corrupt blocks whose pins are gone.
func (s *Store) sweepJunkLocked() {
	for _, m := range s.mem {
		kept := m.junk[:0]
		for _, id := range m.junk {
			if errors.Is(m.tier.Evict(id), tiers.ErrPinned) {
				kept = append(kept, id)
			}
		}
		m.junk = kept
	}
}

// noteLocked counts a tier's failure other than a miss or a lack of room.
func (s *Store) noteLocked(m *memTier, err error) {
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrFull) && !errors.Is(err, tiers.ErrShort) {
		m.stats.Errors++
		s.log.Warn("memory tier", "tier", m.stats.Name, "err", err)
	}
}

func (s *Store) noteColdLocked(err error) {
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrExists) {
		s.coldStats.Errors++
		s.log.Warn("cold tier", "tier", s.coldStats.Name, "err", err)
	}
	if errors.Is(err, tiers.ErrFull) {
		s.runShortLocked()
	}
}
