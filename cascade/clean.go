package cascade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
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

	// syncEvery is how long names, and withdrawals of names, may wait for the
	// cold tier to make them durable: what a kill -9 can undo.
	syncEvery = time.Second
)

// batch is the write to the cold tier that is under way. ahead counts the
// clean victims that are colder than its blocks.
type batch struct {
	inFlight bool
	ahead    int
}

// coldUp tells whether the cold tier takes writes at the moment.
func (s *Store) coldUp() bool { return s.cold != nil && !s.now().Before(s.coldDown) }

// cleanInBackground is the only writer to the cold tier besides Drain. It
// keeps some of the coldest blocks clean, so that a put that needs room seldom
// waits for the cold tier.
func (s *Store) cleanInBackground(ctx context.Context) {
	var due <-chan time.Time // set while names wait
	for {
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
		}
		if due == nil && s.namesWait() {
			due = time.After(syncEvery)
		}
	}
}

// tellCold notes the outcome of telling the cold tier of a name. What it only
// keeps in mind the cleaner makes durable; a block of memory with such a name
// stays until then: see fallOf. The caller holds the mutex.
func (s *Store) tellCold(err error) {
	s.noteCold(err)
	if _, ok := s.cold.(tiers.Syncer); !ok || err != nil {
		return
	}
	if s.told == s.synced {
		s.wakeCleaner(false)
	}
	s.told++
}

// wantSync makes the cleaner sync now. The caller holds the mutex.
func (s *Store) wantSync() {
	s.hurry = true
	s.wakeCleaner(false)
}

func (s *Store) syncWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hurry && s.told > s.synced
}

func (s *Store) namesWait() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told > s.synced
}

// syncOrLater syncs the cold tier and returns when to try again, nil for no
// need to.
func (s *Store) syncOrLater(ctx context.Context) <-chan time.Time {
	select {
	case s.cleaning <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-s.cleaning }()
	if err := s.syncCold(ctx); err != nil && ctx.Err() == nil {
		s.leaveAlone(err)
		return time.After(coldRetry)
	}
	return nil
}

// syncCold makes durable what the cold tier was told so far. The caller holds
// the cleaning token.
func (s *Store) syncCold(ctx context.Context) error {
	s.mu.Lock()
	upTo, waited := s.told, s.told > s.synced
	s.hurry = false
	s.mu.Unlock()
	sync, ok := s.cold.(tiers.Syncer)
	if !ok || !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, coldDeadline)
	defer cancel()
	if err := sync.Sync(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = upTo
	s.announce()
	return nil
}

// leaveAlone notes that the cold tier refused a write and gives it time.
func (s *Store) leaveAlone(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coldDown = s.now().Add(coldRetry)
	s.noteCold(err)
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

// wakeCleaner makes the cleaner look; demanded says that somebody waits. The
// caller holds the mutex.
func (s *Store) wakeCleaner(demanded bool) {
	s.demanded = s.demanded || demanded
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// nudgeCleaner wakes the cleaner when the last memory tier is fuller than it
// should be and few of its next victims are known to be clean. The caller
// holds the mutex.
func (s *Store) nudgeCleaner() {
	if s.coldUp() && !s.batch.inFlight && s.batch.ahead < fewAhead && s.crowded() {
		s.wakeCleaner(false)
	}
}

func (s *Store) crowded() bool {
	u := s.last().tier.Usage()
	capacity, used := u.Capacity, u.Used
	if s.capacity > 0 && len(s.mem) == 1 {
		capacity, used = s.capacity, u.Payload
	}
	return float64(used) > float64(capacity)*s.limits.Load().CleanAbove
}

// dirtyVictims pins the dirty blocks that the memory tiers' policies would
// give up next, if the last tier is crowded or somebody waits. While pinned
// they are no victims, so asking again yields the next.
func (s *Store) dirtyVictims() []*View {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.coldUp() || !s.demanded && !s.crowded() {
		return nil
	}
	s.demanded = false
	var views []*View
	for _, m := range s.mem {
		picked, clean := s.pickDirty(m)
		views = append(views, picked...)
		if m == s.last() {
			s.batch.ahead = clean
		}
	}
	s.batch.inFlight = len(views) > 0
	return views
}

// pickDirty pins m's next dirty victims, each with the dirty part of the chain
// above it: that leaves next, and lies beside it on disk. It counts the clean
// victims that come before the first dirty one. In a tier above the last only
// blocks that fall to the cold tier are picked.
func (s *Store) pickDirty(m *memTier) (views []*View, clean int) {
	p := picker{store: s, mem: m, most: min(cleanBytes, m.tier.Usage().Used/cleanShare)}
	var skipped []*entity
	for !p.full() && len(skipped) < enoughAhead {
		node, ok := m.policy.Victim()
		if !ok {
			break
		}
		b := m.nodes[node]
		if !p.wants(b) {
			s.hold(b, m.index)
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
		s.release(b, m.index)
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

func (p *picker) wants(b *entity) bool {
	if b.cold || b.writing || !b.at[p.mem.index].present {
		return false
	}
	return p.mem == p.store.last() || policy.Demote(p.store.meta(b)) == policy.FallCold
}

// addChain picks b and its dirty ancestors; false when b can not be pinned.
func (p *picker) addChain(b *entity) bool {
	if !p.add(b) {
		return false
	}
	for _, n := range b.names {
		for n = n.parent; n != nil && n.block != nil && p.wants(n.block) && !p.full(); n = n.parent {
			p.add(n.block)
		}
	}
	return true
}

func (p *picker) add(b *entity) bool {
	v, err := p.store.pinIn(b, p.mem, p.mem.stats.Name)
	if err != nil {
		p.store.note(p.mem, err)
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
		s.complete(v)
	}
	items, owners := s.coldItems(views)
	if len(items) > 0 {
		err = s.cold.Put(ctx, items...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.announce()
	s.batch.inFlight = false
	for _, v := range views {
		v.block.writing = false
	}
	switch {
	case errors.Is(err, tiers.ErrExists):
		// Somebody's record of these bytes is there already: take them one by one.
		return s.writeEach(ctx, items, owners), nil
	case err != nil:
		s.coldDown = s.now().Add(coldRetry)
		s.noteCold(err)
		return 0, err
	}
	for i, b := range owners {
		s.nowCold(b, items[i].Names)
	}
	return len(items), nil
}

// coldItems describes the blocks that are still worth writing.
func (s *Store) coldItems(views []*View) (items []tiers.Item, owners []*entity) {
	s.sortByPut(views)
	ok := make([]bool, len(views))
	for i, v := range views {
		ok[i] = block.CRC(v.bytes) == v.pin.Info().CRC
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, v := range views {
		b := v.block
		if !ok[i] && b.at[v.mem.index].stay == v.stay {
			s.log.Error("block fails its checksum and is withdrawn", "tier", v.tier, "block", b.info.ID)
			s.corrupt(b, v.mem)
		}
		if !ok[i] || b.cold || len(b.names) == 0 || b.info.ID.IsProvisional() {
			b.writing = false
			continue
		}
		items = append(items, tiers.Item{Info: b.info, Names: entryNames(b), Data: v.bytes})
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
		if len(v.block.names) == 0 {
			return 0
		}
		return v.block.names[0].entry.Seq
	}
	slices.SortFunc(views, func(x, y *View) int { return cmp.Compare(first(x), first(y)) })
}

// writeEach writes items one at a time, with the mutex released meanwhile.
func (s *Store) writeEach(ctx context.Context, items []tiers.Item, owners []*entity) (written int) {
	for i, it := range items {
		s.mu.Unlock()
		err := s.cold.Put(ctx, it)
		s.mu.Lock()
		if err != nil && !errors.Is(err, tiers.ErrExists) {
			s.noteCold(err)
			continue
		}
		s.nowCold(owners[i], it.Names)
		written++
	}
	return written
}

// nowCold notes that b is in the cold tier with the given names, and brings
// the names there up to date with what happened during the write.
func (s *Store) nowCold(b *entity, wrote []block.Name) {
	b.cold = true
	s.account(b)
	s.last().stats.Demoted++
	live := map[string]uint64{}
	for _, n := range b.names {
		live[n.entry.Namespace+"\x00"+n.entry.Key] = n.entry.Seq
	}
	for _, w := range wrote {
		k := w.Namespace + "\x00" + w.Key
		switch seq, ok := live[k]; {
		case !ok:
			// Whatever the name stands for now was written at least two ticks
			// after w, so this withdraws w's record alone.
			w.Seq++
			s.tellCold(s.cold.Unlink(b.info.ID, w))
		case seq == w.Seq:
			delete(live, k)
		}
	}
	for _, n := range b.names {
		if _, missing := live[n.entry.Namespace+"\x00"+n.entry.Key]; missing {
			s.linkCold(b, n.entry)
		}
	}
	s.announce()
}

// Drain completes pending ids, writes every dirty block to the cold tier and
// makes what that was told of names durable.
// It returns how many blocks it wrote.
func (s *Store) Drain(ctx context.Context) (int, error) {
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err == nil {
		err = s.completePending(ctx)
	}
	if err != nil {
		return 0, err
	}
	return s.drain(ctx)
}

// completePending gives every block in memory its id.
func (s *Store) completePending(ctx context.Context) error {
	for _, b := range s.withoutID() {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.mu.Lock()
		v := s.pinFastest(b)
		s.mu.Unlock()
		if v != nil {
			s.complete(v.background())
			v.Release()
		}
	}
	return nil
}

// withoutID lists the blocks that were acknowledged and not hashed yet.
func (s *Store) withoutID() []*entity {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pending []*entity
	for _, b := range s.blocks {
		if b.info.ID.IsProvisional() && b.inMemory() && len(b.names) > 0 {
			pending = append(pending, b)
		}
	}
	return pending
}

func (s *Store) drain(ctx context.Context) (written int, err error) {
	if s.cold == nil {
		return 0, nil
	}
	select {
	case s.cleaning <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-s.cleaning }()
	dirty := s.dirtyBlocks()
	for len(dirty) > 0 {
		var views []*View
		views, dirty = s.pinDirty(dirty)
		n, err := s.writeCold(ctx, views)
		written += n
		if err != nil {
			return written, fmt.Errorf("%w: %w", errDrain, err)
		}
	}
	if err := s.syncCold(ctx); err != nil {
		return written, fmt.Errorf("%w: %w", errDrain, err)
	}
	return written, nil
}

var errDrain = errors.New("cascade: drain is incomplete: what the cold tier refused stays in memory only")

// dirtyBlocks lists what a drain writes, in the order in which it was put, so
// that chains lie together.
func (s *Store) dirtyBlocks() []*entity {
	s.mu.Lock()
	defer s.mu.Unlock()
	var dirty []*entity
	for _, b := range s.blocks {
		if b.dirty() && len(b.names) > 0 {
			dirty = append(dirty, b)
		}
	}
	slices.SortFunc(dirty, func(x, y *entity) int { return cmp.Compare(x.names[0].entry.Seq, y.names[0].entry.Seq) })
	return dirty
}

// pinDirty pins the first batch of blocks that are still dirty and returns the
// rest.
func (s *Store) pinDirty(dirty []*entity) (views []*View, rest []*entity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bytes int64
	for len(dirty) > 0 && len(views) < cleanBlocks && bytes < cleanBytes {
		b := dirty[0]
		dirty = dirty[1:]
		if !b.dirty() || b.writing || len(b.names) == 0 {
			continue
		}
		if v := s.pinFastest(b); v != nil {
			b.writing = true
			views = append(views, v.background())
			bytes += v.Size()
		}
	}
	return views, dirty
}
