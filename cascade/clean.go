package cascade

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

const (
	// cleanBytes and cleanBlocks bound one write to the cold tier: enough to
	// make one fsync and one seek cheap, little enough that a put that waits
	// for room does not wait long.
	cleanBytes  = 32 << 20
	cleanBlocks = 2048

	// cleanShare bounds a batch to one part in so many of what the tier
	// holds: the blocks of a batch are no victims while it is written.
	cleanShare = 8

	// enoughAhead clean victims before the first dirty one are enough; below
	// fewAhead the cleaner looks again.
	enoughAhead = 64
	fewAhead    = enoughAhead / 2

	// coldRetry is how long a cold tier that refused a write is left alone,
	// and coldDeadline how long one write may take before it counts as refused.
	coldRetry    = 5 * time.Second
	coldDeadline = 20 * time.Second
)

// batch is the write to the cold tier that is under way. ahead counts the
// clean victims that are colder than its blocks.
type batch struct {
	inFlight bool
	ahead    int
}

// coldUpLocked reports whether the cold tier takes writes at the moment.
func (s *Store) coldUpLocked() bool { return s.cold != nil && !s.now().Before(s.mu.coldDown) }

// cleanInBackground is the only writer to the cold tier besides Drain. It
// keeps some of the coldest blocks clean, so that a put that needs room seldom
// waits for the cold tier.
func (s *Store) cleanInBackground(ctx context.Context) {
	defer fault.Guard()()
	var due <-chan time.Time // set while names wait
	for {
		s.shrinkCold()
		sync := false
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			sync = s.syncWanted()
		case <-due:
			sync = true
		}
		if sync {
			due = s.syncOrLater(ctx)
		}
		for !s.syncWanted() && s.cleanSome(ctx) {
			s.shrinkCold()
		}
		if due == nil && s.namesWait() {
			due = time.After(syncEvery)
		}
	}
}

// leaveAlone notes that the cold tier refused a write and gives it time.
func (s *Store) leaveAlone(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.coldDown = s.now().Add(coldRetry)
	s.noteColdLocked(err)
}

// heedRoom logs when the cold tier begins to refuse blocks for want of room, and
// when it takes them again. It is called after each write, with the cleaning token
// held.
func (s *Store) heedRoom() {
	health := s.cold.Stats().Health
	full := health != nil && health.ReadOnly
	if full == s.coldFull {
		return
	}
	s.coldFull = full
	if full {
		s.log.Warn("the cold tier is read-only: no space or quota is left; free some, raise the quota, or remove what earlier jobs left; it is tried again by itself",
			"tier", s.coldStats.Name)
	} else {
		s.log.Info("the cold tier has room and takes blocks again", "tier", s.coldStats.Name)
	}
}

// cleanSome writes one batch if one is wanted, and reports whether to look
// again.
func (s *Store) cleanSome(ctx context.Context) bool {
	select {
	case s.cleaning <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-s.cleaning }()
	views := s.dirtyVictims()
	if len(views) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	_, err := s.writeCold(ctx, views)
	return err == nil
}

// wakeCleanerLocked makes the cleaner look; demanded: somebody waits.
func (s *Store) wakeCleanerLocked(demanded bool) {
	s.mu.cleanRequested = s.mu.cleanRequested || demanded
	wake(s.wake)
}

// nudgeCleanerLocked wakes the cleaner when the last memory tier is fuller than
// it should be and few of its next victims are known to be clean.
func (s *Store) nudgeCleanerLocked() {
	if s.coldUpLocked() && !s.mu.batch.inFlight && s.mu.batch.ahead < fewAhead && s.crowded() {
		s.wakeCleanerLocked(false)
	}
}

func (s *Store) crowded() bool {
	capacity, used := s.lastRoom()
	return float64(used) > float64(capacity)*s.limits.Load().CleanAbove
}

// lastRoom is how much the last memory tier may hold, as Options.Capacity has it,
// and how much it holds, in bytes.
func (s *Store) lastRoom() (capacity, used int64) {
	u := s.last().tier.Usage()
	if s.capacity > 0 && len(s.mem) == 1 {
		return s.capacity, u.Payload
	}
	return u.Capacity, u.Used
}

// dirtyVictims pins the dirty blocks that the memory tiers' policies would
// give up next, if the last tier is crowded or somebody waits. While pinned
// they are no victims, so asking again yields the next.
func (s *Store) dirtyVictims() []*View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.coldUpLocked() || !s.mu.cleanRequested && !s.crowded() {
		return nil
	}
	s.mu.cleanRequested = false
	var views []*View
	for _, m := range s.mem {
		picked, clean := s.pickDirtyLocked(m)
		views = append(views, picked...)
		if m == s.last() {
			s.mu.batch.ahead = clean
		}
	}
	s.mu.batch.inFlight = len(views) > 0
	return views
}

// pickDirtyLocked pins m's next dirty victims, each with the dirty part of the
// chain above it: that leaves next, and lies beside it on disk. It counts the
// clean victims that come before the first dirty one. In a tier above the last
// only blocks that fall to the cold tier are picked.
func (s *Store) pickDirtyLocked(m *memTier) (views []*View, clean int) {
	p := picker{store: s, mem: m, most: min(cleanBytes, m.tier.Usage().Used/cleanShare)}
	var skipped []*blockState
	for !p.full() && len(skipped) < enoughAhead {
		b := s.victimLocked(m)
		if b == nil {
			break
		}
		if !p.wants(b) {
			s.holdLocked(b, m.index)
			skipped = append(skipped, b)
			continue
		}
		if len(p.views) == 0 {
			clean = len(skipped)
		}
		if !p.addChain(b) {
			break
		}
	}
	for _, b := range skipped {
		s.releaseLocked(b, m.index)
	}
	if len(p.views) == 0 {
		clean = len(skipped)
	}
	return p.views, clean
}

// picker collects one tier's share of a batch.
type picker struct {
	store *Store
	mem   *memTier
	most  int64
	bytes int64
	views []*View
}

func (p *picker) full() bool {
	return len(p.views) >= cleanBlocks || len(p.views) > 0 && p.bytes >= p.most
}

func (p *picker) wants(b *blockState) bool {
	if b.hasLowerCopy() || b.writing || !b.In(p.mem.index) {
		return false
	}
	return p.mem == p.store.last() || p.mem.policy.Fall(p.store.metaLocked(b)) == policy.FallCold
}

// addChain picks b and its dirty ancestors; false when b can not be pinned.
func (p *picker) addChain(b *blockState) bool {
	if !p.add(b) {
		return false
	}
	for _, n := range b.Names() {
		for n = n.Parent(); n != nil && n.Block() != nil && p.wants(stateOf(n)) && !p.full(); n = n.Parent() {
			p.add(stateOf(n))
		}
	}
	return true
}

func (p *picker) add(b *blockState) bool {
	v, err := p.store.pinInLocked(b, p.mem, p.mem.stats.Name)
	if err != nil {
		p.store.noteLocked(p.mem, err)
		return false
	}
	b.writing = true
	p.views = append(p.views, v.background())
	p.bytes += v.Size()
	return true
}

// writeCold completes, verifies and writes the viewed blocks as one batch,
// marks them clean and releases the views. It returns how many it wrote. The
// caller holds the cleaning token.
func (s *Store) writeCold(ctx context.Context, views []*View) (written int, err error) {
	defer func() {
		// A write to a hung file system can outlast its deadline; the bytes
		// stay where they are until it is over.
		afterIO(err, func() {
			for _, v := range views {
				v.Release()
			}
		})
	}()
	for _, v := range views {
		s.finalizeID(v)
	}
	items, owners := s.coldItems(views)
	if len(items) > 0 {
		err = s.cold.Put(ctx, items...)
		s.heedRoom()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wakeWaitersLocked()
	s.mu.batch.inFlight = false
	for _, v := range views {
		v.block.writing = false
	}
	switch {
	case errors.Is(err, tiers.ErrExists):
		// Somebody's record of these bytes is there already: take them one by one.
		return s.writeEachLocked(ctx, items, owners), nil
	case err != nil:
		s.mu.coldDown = s.now().Add(coldRetry)
		s.noteColdLocked(err)
		return 0, err
	}
	if len(items) > 0 && s.mu.short.Limit() > 0 { // what the tier takes is known by looking at all its files
		s.mu.short.Accept(s.now(), s.usedBelow())
	}
	for i, b := range owners {
		s.nowColdLocked(b, items[i].Names)
	}
	return len(items), nil
}

// coldItems describes the blocks that are still worth writing.
func (s *Store) coldItems(views []*View) (items []tiers.Item, owners []*blockState) {
	s.sortByPut(views)
	ok := make([]bool, len(views))
	for i, v := range views {
		ok[i] = block.CRC(v.bytes) == v.pin.Info().CRC
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range views {
		b := v.block
		if !ok[i] {
			v.withdrawLocked()
		}
		if !ok[i] || b.cold || len(b.Names()) == 0 || b.Info.ID.IsProvisional() {
			b.writing = false
			continue
		}
		items = append(items, tiers.Item{Info: b.Info, Names: b.Records(), Data: v.bytes})
		owners = append(owners, b)
	}
	return items, owners
}

// sortByPut orders views as their blocks were put, so that a chain lies in one
// piece on disk.
func (s *Store) sortByPut(views []*View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := func(v *View) uint64 {
		if len(v.block.Names()) == 0 {
			return 0
		}
		return v.block.Names()[0].Seq()
	}
	slices.SortFunc(views, func(x, y *View) int { return cmp.Compare(first(x), first(y)) })
}

// writeEachLocked writes items one at a time, with the mutex released
// meanwhile.
func (s *Store) writeEachLocked(ctx context.Context, items []tiers.Item, owners []*blockState) (written int) {
	for i, it := range items {
		s.mu.Unlock()
		err := s.cold.Put(ctx, it)
		s.mu.Lock()
		if err != nil && !errors.Is(err, tiers.ErrExists) {
			s.noteColdLocked(err)
			continue
		}
		s.nowColdLocked(owners[i], it.Names)
		written++
	}
	return written
}

// nowColdLocked notes that b is in the cold tier with the given names, and
// brings the names there up to date with what happened during the write.
func (s *Store) nowColdLocked(b *blockState, wrote []block.Name) {
	s.enterColdLocked(b)
	s.last().stats.Demoted++
	live := map[string]uint64{}
	for _, n := range b.Names() {
		live[n.Namespace()+"\x00"+n.Key()] = n.Seq()
	}
	for _, w := range wrote {
		k := w.Namespace + "\x00" + w.Key
		switch seq, ok := live[k]; {
		case !ok:
			// Whatever the name stands for now was written at least two ticks
			// after w, so this withdraws w's record alone.
			w.Seq++
			s.noteLinkLocked(s.cold.Unlink(b.Info.ID, w))
		case seq == w.Seq:
			delete(live, k)
		}
	}
	for _, n := range b.Names() {
		if _, missing := live[n.Namespace()+"\x00"+n.Key()]; missing {
			s.linkColdLocked(b, n.Record())
		}
	}
	s.wakeWaitersLocked()
}
