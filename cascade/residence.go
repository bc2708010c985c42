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
	nodes  []*entity // by policy node
}

// insert tells the policy of b, which entered the tier.
func (o *order) insert(now time.Duration, m policy.Meta, b *entity) policy.Node {
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
func (o *order) next() *entity {
	if node, ok := o.policy.Victim(); ok {
		return o.nodes[node]
	}
	return nil
}

// The invariant of residence: in each memory tier t, the holds on a block are
// its busy holds (views, copies, leases) plus the sum, over its names, of
// their resident[t]. So a block with a child in the same tier is no victim,
// and eviction leaves no hole in a chain (design.md §5).

// enter tells policy and chain graph that b's bytes are in memory tier m.
func (s *Store) enter(b *entity, m *memTier) {
	s.stays++
	b.at[m.index] = place{present: true, node: m.insert(s.age(), s.meta(b), b), stay: s.stays}
	for _, n := range b.names {
		s.holdTimes(b, m.index, n.resident[m.index])
	}
	for _, n := range b.names {
		s.countChild(n, m.index)
		s.holdLeasesOf(n)
	}
	s.restate(b)
	s.showAll(b)
}

// leave undoes enter. Holds of whatever kind on b in m end with it.
func (s *Store) leave(b *entity, m *memTier) {
	node := b.at[m.index].node
	for _, n := range b.names {
		s.uncountChild(n, m.index)
		for _, l := range n.leases {
			s.unholdLease(l)
		}
	}
	b.at[m.index] = place{}
	m.remove(node)
	s.restate(b)
	s.showAll(b)
}

// restate keeps the counters, and what other ranks know of all names of b, in step
// with b. It is called after every change of where b is and of its id.
func (s *Store) restate(b *entity) {
	s.sayAll(b)
	s.account(b)
}

// account keeps the counters of dirty and pending blocks in step with b.
func (s *Store) account(b *entity) {
	named := len(b.names) > 0 && b.inMemory()
	dirty, pending := named && !b.isBelow(), named && b.info.ID.IsProvisional()
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
	count(&b.countedDirty, dirty, &s.stats.DirtyBlocks, &s.stats.DirtyBytes)
	count(&b.countedPending, pending, &s.stats.PendingIDs, &s.stats.PendingBytes)
	s.weigh(b)
}

// hold and release keep b from being chosen as a victim of tier t.
func (s *Store) hold(b *entity, t int)    { s.mem[t].policy.Hold(b.at[t].node) }
func (s *Store) release(b *entity, t int) { s.mem[t].policy.Release(b.at[t].node) }

func (s *Store) holdTimes(b *entity, t int, times int32) {
	for range times {
		s.hold(b, t)
	}
}

// countChild counts n among its parent's children that are in tier t.
func (s *Store) countChild(n *name, t int) {
	if p := n.parent; p != nil {
		p.resident[t]++
		if p.block != nil && p.block.at[t].present {
			s.hold(p.block, t)
		}
	}
}

func (s *Store) uncountChild(n *name, t int) {
	if p := n.parent; p != nil {
		p.resident[t]--
		if p.block != nil && p.block.at[t].present {
			s.release(p.block, t)
		}
	}
}

// meta is what policies are told of b.
func (s *Store) meta(b *entity) policy.Meta {
	return policy.Meta{
		Fingerprint: binary.LittleEndian.Uint64(b.info.ID[:]) ^ binary.LittleEndian.Uint64(b.info.ID[24:]),
		Size:        b.info.Size,
		Refs:        len(b.names),
		Prefix:      b.prefixes > 0,
		Depth:       b.depth,
	}
}

func (s *Store) updatePolicies(b *entity) {
	for t, m := range s.mem {
		if b.at[t].present {
			m.policy.Update(b.at[t].node, s.meta(b))
		}
	}
	if b.below.ranked {
		s.room.policy.Update(b.below.node, s.meta(b))
	}
}

// age is the time policies live in.
func (s *Store) age() time.Duration { return s.now().Sub(s.born) }

// drop takes b's bytes out of memory tier m. The caller knows that nothing
// pins them there.
func (s *Store) drop(b *entity, m *memTier) {
	s.leave(b, m)
	s.note(m, m.tier.Evict(b.info.ID))
}

// forget removes a block that has no names from everywhere, or leaves it to
// the last of those who are busy with it.
func (s *Store) forget(b *entity) {
	if b.busy > 0 || len(b.names) > 0 {
		return
	}
	for t, m := range s.mem {
		if b.at[t].present {
			s.drop(b, m)
		}
	}
	if b.cold {
		s.leaveCold(b)
		s.noteCold(s.cold.Evict(b.info.ID))
	}
	s.remove(b)
}

// remove takes b out of the index of blocks.
func (s *Store) remove(b *entity) {
	if s.blocks[b.info.ID] == b {
		delete(s.blocks, b.info.ID)
		s.stats.BytesStored -= b.info.Size
	}
}

// vanish withdraws all names of a block whose bytes are nowhere any more.
func (s *Store) vanish(b *entity) {
	for len(b.names) > 0 {
		n := b.names[len(b.names)-1]
		s.endLeases(n)
		if b.from == nil {
			s.supersede(nameID{n.entry.Namespace, n.entry.Key}, n.put)
		}
		s.detach(n)
		s.tellRemoved(n, b)
		s.hide(n)
		n.delist()
		n.prune()
		s.leaveSpace(n.space)
	}
	s.forget(b)
}

// corrupt withdraws b from memory tier m because its bytes fail their
// checksum. Bytes that somebody still has pinned are renamed out of the way.
func (s *Store) corrupt(b *entity, m *memTier) {
	if !b.at[m.index].present {
		return
	}
	s.stats.Corrupt++
	s.leave(b, m)
	err := m.tier.Evict(b.info.ID)
	if errors.Is(err, tiers.ErrPinned) {
		junk := s.provisional()
		if err = m.tier.Rename(b.info.ID, junk); err == nil {
			m.junk = append(m.junk, junk)
		}
	}
	s.note(m, err)
	if !b.cold && !b.inMemory() {
		s.vanish(b)
	}
}

// sweepJunk drops corrupt blocks whose pins are gone.
func (s *Store) sweepJunk() {
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

// note counts a tier's failure other than a miss or a lack of room.
func (s *Store) note(m *memTier, err error) {
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrFull) && !errors.Is(err, tiers.ErrShort) {
		m.stats.Errors++
		s.log.Warn("memory tier", "tier", m.stats.Name, "err", err)
	}
}

func (s *Store) noteCold(err error) {
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrExists) {
		s.coldStats.Errors++
		s.log.Warn("cold tier", "tier", s.coldStats.Name, "err", err)
	}
	if errors.Is(err, tiers.ErrFull) {
		s.runShort()
	}
}
