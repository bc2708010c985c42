package cascade

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Get returns a pinned view of the block that (ns, key) names (CASCADE
// Algorithm 2). The caller must Release it. The error matches ErrMiss for
// anything the caller can answer by computing the block, a failing tier
// included.
func (s *Store) Get(ctx context.Context, ns, key string) (*View, error) {
	return s.getOne(ctx, ns, key, s.verify)
}

// GetUnverified is Get for callers that read the bytes once themselves, to
// send them: the checksum of a memory hit is left to them. They pass the
// CRC32C of what they read to View.Verify before they let the last byte go.
func (s *Store) GetUnverified(ctx context.Context, ns, key string) (*View, error) {
	return s.getOne(ctx, ns, key, false)
}

func (s *Store) getOne(ctx context.Context, ns, key string, verify bool) (*View, error) {
	views, err := s.get(ctx, ns, []string{key}, getting{verify: verify})
	if err != nil {
		return nil, err
	}
	if views[0] == nil {
		return nil, ErrMiss
	}
	return views[0], nil
}

// GetBatch gets the keys of one chain, head first, as one request of the
// eviction policy. Misses are nil. The error is ErrClosed or nil.
func (s *Store) GetBatch(ctx context.Context, ns string, keys []string) ([]*View, error) {
	return s.get(ctx, ns, keys, getting{verify: s.verify})
}

// getting is how blocks are got.
type getting struct {
	verify bool // memory hits are checked
	keep   bool // what only others have is kept here
}

func (s *Store) get(ctx context.Context, ns string, keys []string, how getting) ([]*View, error) {
	views := make([]*View, len(keys))
	waits, missing, err := s.pinResident(ns, keys, views)
	if err != nil {
		return views, err
	}
	if len(missing) > 0 {
		s.getRemote(ctx, ns, keys, missing, views, how.keep)
	}
	if how.verify { // while others are on their way
		s.check(ctx, ns, keys, views)
	}
	if len(waits) > 0 {
		s.awaitAll(ctx, waits, views)
		if how.verify {
			s.check(ctx, ns, keys, views)
		}
	}
	s.promote(ctx, views)
	s.count(ns, views)
	return views, nil
}

// check compares hits in memory with their checksums, each once, and gets from
// elsewhere what fails.
func (s *Store) check(ctx context.Context, ns string, keys []string, views []*View) {
	for i, v := range views {
		if v == nil || v.checked || v.mem == nil {
			continue
		}
		if v.checked = v.Verify(block.CRC(v.bytes)); !v.checked {
			v.Release()
			views[i] = s.getBelow(ctx, ns, keys[i])
		}
	}
}

// wait is a key of a batch whose block is on its way from the cold tier.
type wait struct {
	index int
	fetch *fetch
}

// awaitAll waits for what is on its way, all together for as long as one fetch
// may take.
func (s *Store) awaitAll(ctx context.Context, waits []wait, views []*View) {
	ctx, cancel := s.untilFetched(ctx)
	defer cancel()
	for _, w := range waits {
		views[w.index] = s.await(ctx, w.fetch)
	}
}

// pinResident pins all that is in memory, starts to fetch what is in the cold
// tier, and passes the request to the policies. missing are the keys to be
// looked for elsewhere.
func (s *Store) pinResident(ns string, keys []string, views []*View) (waits []wait, missing []int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkOpenLocked(); err != nil {
		return nil, nil, err
	}
	var fresh []*fetch
	for i, key := range keys {
		n := s.lookupLocked(ns, key)
		if n == nil {
			s.addMissLocked(ns, key)
			if s.asksElsewhere() {
				missing = append(missing, i)
			}
			continue
		}
		b := stateOf(n)
		s.usedColdLocked(b)
		s.addAccessLocked(b)
		if views[i] = s.pinFastestLocked(b); views[i] != nil {
			continue
		}
		if f := s.joinFetchLocked(b, &fresh); f != nil {
			waits = append(waits, wait{i, f})
		}
	}
	s.bringUpLocked(fresh)
	s.accessLocked(true)
	return waits, missing, nil
}

// getBelow gets a block whose copy in memory turned out to be bad.
func (s *Store) getBelow(ctx context.Context, ns, key string) *View {
	s.mu.Lock()
	n := s.lookupLocked(ns, key)
	if n == nil {
		s.mu.Unlock()
		view := make([]*View, 1)
		if s.asksElsewhere() { // it was a copy of what lies there
			s.getRemote(ctx, ns, []string{key}, []int{0}, view, false)
		}
		return view[0]
	}
	var fresh []*fetch
	f := s.joinFetchLocked(stateOf(n), &fresh)
	s.bringUpLocked(fresh)
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	ctx, cancel := s.untilFetched(ctx)
	defer cancel()
	return s.await(ctx, f)
}

// pinFastestLocked pins b in the fastest memory tier that has it, or returns
// nil.
func (s *Store) pinFastestLocked(b *blockState) *View {
	for _, m := range s.mem {
		if !b.In(m.index) {
			continue
		}
		v, err := s.pinInLocked(b, m, m.stats.Name)
		if err == nil {
			return v
		}
		s.noteLocked(m, err)
	}
	return nil
}

// promote copies hits of a slower memory tier into the fastest one.
func (s *Store) promote(ctx context.Context, views []*View) {
	if len(s.mem) == 1 {
		return
	}
	for _, v := range views {
		if v != nil && v.mem != nil && v.mem.index > 0 {
			// A promotion that finds no room is not made.
			_ = s.copyTo(ctx, v, s.mem[0], copyOnly)
		}
	}
}

// copyTo puts a copy of a viewed block into memory tier m.
func (s *Store) copyTo(ctx context.Context, v *View, m *memTier, most price) error {
	slot, err := s.reserve(ctx, m, v.Size(), most)
	if err != nil {
		return err
	}
	defer slot.Abort()
	copy(slot.Bytes(), v.bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := v.block
	if b.In(m.index) || len(b.Names()) == 0 {
		return nil
	}
	if err := slot.Commit(b.Info, b.Records()); err != nil {
		return s.roomError(m, v.Size(), err)
	}
	s.enterLocked(b, m)
	m.stats.Promoted++
	return nil
}

// count adds a request's hits and misses to the statistics.
func (s *Store) count(ns string, views []*View) {
	if len(views) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, missed := s.askedLocked(ns), uint64(0)
	for _, v := range views {
		if v == nil {
			missed++
			continue
		}
		s.mu.stats.Hits++
		if sp != nil {
			sp.Hits++
		}
		s.countHitLocked(v.tier, v.Size())
	}
	s.countMissesLocked(ns, missed)
}

// countHitLocked counts a get with the tier that served it, and with those of
// memory that would have been faster.
func (s *Store) countHitLocked(tier string, size int64) {
	for _, m := range s.mem {
		if m.stats.Name == tier {
			break
		}
		m.stats.Misses++
	}
	t := s.tierStatsLocked(tier)
	t.Hits++
	t.HitBytes += uint64(size)
}

func (s *Store) tierStatsLocked(name string) *TierStats {
	for _, m := range s.mem {
		if m.stats.Name == name {
			return &m.stats
		}
	}
	if name == RemoteTier {
		return &s.remoteHits
	}
	return &s.coldStats
}

// fastestLocked names the fastest tier that has b.
func (s *Store) fastestLocked(b *blockState) string {
	for _, m := range s.mem {
		if b.In(m.index) {
			return m.stats.Name
		}
	}
	return s.coldStats.Name
}

// Contains reports whether (ns, key) is visible on some rank. It is not an
// access.
func (s *Store) Contains(ctx context.Context, ns, key string) bool {
	found := s.containsHere(ns, key) || s.locatedOne(ctx, ns, key) != nil
	s.countLookup(ns, found)
	return found
}

func (s *Store) containsHere(ns, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookupLocked(ns, key) != nil
}

// roomError turns a tier's refusal into the store's words.
func (s *Store) roomError(m *memTier, size int64, err error) error {
	switch {
	case errors.Is(err, tiers.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, tiers.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	default:
		return fmt.Errorf("%w: %d bytes in tier %s: %w", ErrNoRoom, size, m.stats.Name, err)
	}
}
