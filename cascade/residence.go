package cascade

import (
	"errors"
	"log/slog"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// maxMemory bounds the memory tiers of a store: HBM or its stand-in, and shm.
const maxMemory = names.Levels

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
	looked int           // node that find looks at next
}

// insert adds b, which entered the tier.
func (o *order) insert(now time.Duration, m policy.Meta, b *blockState) policy.Node {
	node := o.policy.Insert(now, m)
	for int(node) >= len(o.nodes) {
		o.nodes = append(o.nodes, nil)
	}
	o.nodes[node] = b
	return node
}

// remove takes out a block that left the tier, evicted or for another reason.
func (o *order) remove(node policy.Node, evicted bool) {
	o.policy.Remove(node, evicted)
	o.nodes[node] = nil
}

// next is the block that the policy gives up next, nil when all are held.
func (o *order) next() *blockState {
	if node, ok := o.policy.Victim(); ok {
		return o.nodes[node]
	}
	return nil
}

// findStep bounds the blocks that find looks at.
const findStep = 32 << 10

// find returns a block that ok accepts, of the next findStep in turn; nil when
// there is none. The search goes on where it ended: however many blocks there are
// and however many callers ask again and again, each holds the mutex for a bounded
// time.
func (o *order) find(ok func(*blockState) bool) *blockState {
	for range min(findStep, len(o.nodes)) {
		if o.looked >= len(o.nodes) {
			o.looked = 0
		}
		b := o.nodes[o.looked]
		o.looked++
		if b != nil && ok(b) {
			return b
		}
	}
	return nil
}

// The invariant of residence: in each memory tier, the holds on a block are its
// busy holds (views and copies) plus those of the chain graph: see names.Graph.

// enterLocked records that b's bytes are in memory tier m.
func (s *Store) enterLocked(b *blockState, m *memTier) {
	s.mu.stays++
	b.at[m.index] = place{node: m.insert(s.age(), s.metaLocked(b), b), stay: s.mu.stays}
	s.mu.names.Enter(&b.Block, m.index)
	s.applyLocked()
	s.holdLeasesLocked(b)
}

// leaveLocked undoes enterLocked. Holds of whatever kind on b in m end with it.
func (s *Store) leaveLocked(b *blockState, m *memTier, evicted bool) {
	node := b.at[m.index].node
	s.mu.names.Leave(&b.Block, m.index)
	s.applyLocked()
	b.at[m.index] = place{}
	m.remove(node, evicted)
}

// holdLocked and release keep b from being chosen as a victim of tier t.
func (s *Store) holdLocked(b *blockState, t int)    { s.mem[t].policy.Hold(b.at[t].node) }
func (s *Store) releaseLocked(b *blockState, t int) { s.mem[t].policy.Release(b.at[t].node) }

// metaLocked is what policies get of b.
func (s *Store) metaLocked(b *blockState) policy.Meta {
	return policy.Meta{
		Fingerprint: s.fingerprintLocked(b),
		Size:        b.Info.Size,
		Refs:        len(b.Names()),
		Prefix:      b.Prefix(),
		Depth:       b.Depth(),
	}
}

// age is the time policies live in.
func (s *Store) age() time.Duration { return s.now().Sub(s.born) }

// dropLocked takes b's bytes out of memory tier m, evicted or for another reason.
// Nothing pins them there.
func (s *Store) dropLocked(b *blockState, m *memTier, evicted bool) {
	s.leaveLocked(b, m, evicted)
	s.noteLocked(m, m.tier.Evict(b.Info.ID))
}

// forgetLocked removes a block that has no names from everywhere, or leaves it
// to the last of those who are busy with it.
func (s *Store) forgetLocked(b *blockState) {
	if b.busy > 0 || len(b.Names()) > 0 {
		return
	}
	for t, m := range s.mem {
		if b.In(t) {
			s.dropLocked(b, m, false)
		}
	}
	if b.cold {
		s.leaveColdLocked(b, false)
		s.noteColdLocked(s.cold.Evict(b.Info.ID))
	}
	s.removeLocked(b)
}

// removeLocked takes b out of the index of blocks.
func (s *Store) removeLocked(b *blockState) {
	if s.mu.blocks[b.Info.ID] == b {
		delete(s.mu.blocks, b.Info.ID)
		s.mu.stats.BytesStored -= b.Info.Size
	}
}

// corruptLocked withdraws b from memory tier m because its bytes fail their
// checksum. Bytes that somebody still has pinned are renamed out of the way.
func (s *Store) corruptLocked(b *blockState, m *memTier) {
	if !b.In(m.index) {
		return
	}
	s.mu.stats.Corrupt++
	s.leaveLocked(b, m, false)
	err := m.tier.Evict(b.Info.ID)
	if errors.Is(err, tiers.ErrPinned) {
		junk := s.provisionalLocked()
		if err = m.tier.Rename(b.Info.ID, junk); err == nil {
			m.junk = append(m.junk, junk)
		}
	}
	s.noteLocked(m, err)
	if !b.cold && !b.InAny() {
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
		s.logLocked(slog.LevelWarn, "memory tier", "tier", m.stats.Name, "err", err)
	}
}

func (s *Store) noteColdLocked(err error) {
	if err != nil && !errors.Is(err, tiers.ErrNotFound) && !errors.Is(err, tiers.ErrExists) {
		s.coldStats.Errors++
		s.logLocked(slog.LevelWarn, "cold tier", "tier", s.coldStats.Name, "err", err)
	}
	if errors.Is(err, tiers.ErrFull) {
		s.runShortLocked()
	}
}
