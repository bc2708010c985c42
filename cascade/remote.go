package cascade

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"strings"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// RemoteTier is the word for other ranks' memory in statistics.
const RemoteTier = "remote"

// replication is what decides which blocks of other ranks are kept here.
// Guarded by the store's mutex.
type replication struct {
	policy *policy.Replicator
	seed   maphash.Seed
}

func newReplication() replication {
	return replication{policy: policy.NewReplicator(), seed: maphash.MakeSeed()}
}

// keeps decides about a block that is read from elsewhere. What no rank has in
// memory any more comes up here, as from this rank's own cold tier.
func (r *replication) keeps(id nameID, copies []directory.Statement) bool {
	hot := r.policy.Read(maphash.Comparable(r.seed, id))
	return hot || copies[0].Memory == nil
}

// getRemote gets the keys whose views are missing from other ranks; keep makes
// copies of them here.
func (s *Store) getRemote(ctx context.Context, ns string, keys []string, missing []int, views []*View, keep bool) {
	ctx, cancel := s.untilFetched(ctx)
	defer cancel()
	if keep {
		s.invalidateLanded(ns, keys, missing)
	}
	fetches := s.joinKnown(ns, keys, missing, views)
	var ask []int
	for j, i := range missing {
		if views[i] == nil && fetches[j] == nil {
			ask = append(ask, j)
		}
	}
	if len(ask) > 0 {
		wanted := make([]string, len(ask))
		for a, j := range ask {
			wanted[a] = strings.Clone(keys[missing[j]]) // it may outlive the request
		}
		found := s.located(ctx, ns, wanted)
		var fresh []*fetch
		s.mu.Lock()
		for a, j := range ask {
			if found[a] == nil || s.mu.closed || fromCatalogue(found[a]) && s.mu.tombstones.Has(&found[a][0].Name) {
				continue
			}
			id := nameID{ns, wanted[a]}
			if views[missing[j]], fetches[j] = s.joinOneLocked(id); views[missing[j]] == nil && fetches[j] == nil {
				fetches[j] = s.startRemoteLocked(id, found[a], keep, &fresh)
				fetches[j].waiters++
			}
		}
		s.bringUpLocked(fresh)
		s.mu.Unlock()
	}
	for j, f := range fetches {
		if f != nil && views[missing[j]] == nil {
			views[missing[j]] = s.await(ctx, f)
		}
	}
	s.touchOwners(ns, keys, missing, fetches, views)
}

// joinKnown serves what was fetched ahead of the request, and joins the
// fetches under way, in parallel to missing.
func (s *Store) joinKnown(ns string, keys []string, missing []int, views []*View) []*fetch {
	fetches := make([]*fetch, len(missing))
	s.mu.Lock()
	defer s.mu.Unlock()
	for j, i := range missing {
		views[i], fetches[j] = s.joinOneLocked(nameID{ns, keys[i]})
	}
	return fetches
}

// joinOneLocked serves a name from what was fetched ahead, or counts the caller
// among those who wait for it; neither when it is not there.
func (s *Store) joinOneLocked(id nameID) (*View, *fetch) {
	f := s.mu.remote[id]
	switch {
	case f == nil:
	case !f.finished:
		f.waiters++
		s.continuePrefetchLocked(f)
		return nil, f
	case s.now().Before(f.landed.until):
		return s.takeLandedLocked(f), f
	default:
		s.invalidateFetchLocked(id, math.MaxUint64)
	}
	return nil, nil
}

// asksElsewhere reports whether what is not here may be elsewhere.
func (s *Store) asksElsewhere() bool { return s.peers != nil || s.others.Load() }

// locate looks for keys in the catalogue, and asks the peers for the rest.
func (s *Store) locate(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := s.catalogued(ns, keys)
	if s.peers == nil {
		return found
	}
	var rest []string
	var at []int
	for i, copies := range found {
		if copies == nil {
			rest, at = append(rest, keys[i]), append(at, i)
		}
	}
	if len(rest) > 0 {
		for j, copies := range s.peers.Locate(ctx, ns, rest) {
			found[at[j]] = copies
		}
	}
	return found
}

// located is locate without bound names whose parent is nowhere: half a pair is
// no hit.
func (s *Store) located(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := s.locate(ctx, ns, keys)
	var parents []string
	var halves []int
	for i, copies := range found {
		if copies == nil || !copies[0].Name.Bound || s.containsHere(ns, copies[0].Name.Parent) {
			continue
		}
		parents = append(parents, copies[0].Name.Parent)
		halves = append(halves, i)
	}
	if len(parents) == 0 {
		return found
	}
	for j, copies := range s.locate(ctx, ns, parents) {
		if copies == nil {
			found[halves[j]] = nil
		}
	}
	return found
}

// locatedOne is located for one key; nil where there is nothing to ask.
func (s *Store) locatedOne(ctx context.Context, ns, key string) []directory.Statement {
	if !s.asksElsewhere() {
		return nil
	}
	return s.located(ctx, ns, []string{key})[0]
}

// touchOwners reports to the owners which blocks of a chain were served here, so
// that they age there as if they had been used there.
func (s *Store) touchOwners(ns string, keys []string, missing []int, fetches []*fetch, views []*View) {
	chains := map[fabric.Rank][]string{}
	for j, f := range fetches {
		if f != nil && views[missing[j]] != nil && f.copies[0].Memory != nil {
			owner := f.copies[0].Owner
			chains[owner] = append(chains[owner], keys[missing[j]])
		}
	}
	for owner, chain := range chains {
		s.peers.Touch(owner, ns, chain)
	}
}

// startRemoteLocked starts the fetch of a located name of which there is none,
// to keep it here if keep or the policy wants that. One that only a segment has is
// added to fresh instead, and the caller must let bringUp have it. The caller
// holds the mutex, has checked that the store is not closed, and counts itself among
// the waiters if it awaits the result.
func (s *Store) startRemoteLocked(id nameID, copies []directory.Statement, keep bool, fresh *[]*fetch) *fetch {
	f := &fetch{name: id, copies: copies, info: copies[0].Info, done: make(chan struct{})}
	s.mu.remote[id] = f
	f.keep = s.mu.replicate.keeps(id, copies) || keep
	if s.onlyInSegment(copies) {
		*fresh = append(*fresh, f)
	} else {
		s.workers.Go(func() { s.runRemote(f) })
	}
	return f
}

// arrival is a block that was read from elsewhere and is not published yet.
type arrival struct {
	bytes []byte
	slot  tiers.Slot // nil: private memory
	free  func()     // of private memory
	tier  string     // where it came from
}

func (a *arrival) abort() {
	if a.slot != nil {
		a.slot.Abort()
		return
	}
	a.free()
}

func (s *Store) runRemote(f *fetch) {
	defer fault.Guard()()
	ctx, cancel := s.untilFetched(context.Background())
	defer cancel()
	var a *arrival
	err := takeSlot(ctx, s.reading)
	if err == nil {
		a, err = s.readRemote(ctx, f)
		<-s.reading
	}
	s.arrived(f, a, err)
}

// arrived ends a fetch from elsewhere.
func (s *Store) arrived(f *fetch, a *arrival, err error) {
	if err != nil && a != nil {
		afterIO(err, a.abort)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.finished = true
	if err == nil {
		s.publishArrivalLocked(f, a)
	}
	if f.landed == nil {
		s.mu.prefetchBytes -= f.reserved
		if s.mu.remote[f.name] == f {
			delete(s.mu.remote, f.name)
		}
	}
	close(f.done)
	s.wakeWaitersLocked()
}

// readRemote reads a block from the memory of another rank, or from a segment
// in the shared file system, into a slot of the last memory tier if it is to be
// kept, or into private memory. What it returns is given back after an error too.
func (s *Store) readRemote(ctx context.Context, f *fetch) (*arrival, error) {
	copies, info := f.copies, f.info
	room, stop := s.untilRoom(ctx)
	defer stop()
	a, err := s.arrivalRoom(room, info.Size, f.keep, f.price)
	if err != nil {
		return nil, err
	}
	a.tier = RemoteTier
	if err = errOnlyBelow; !fromCatalogue(copies) {
		err = s.peers.Read(ctx, copies, a.bytes)
	}
	if err == nil && block.CRC(a.bytes) != info.CRC {
		err = s.misread(copies)
	}
	if err != nil && !lingers(err) {
		a.tier = s.coldStats.Name
		err = s.readSegments(ctx, copies, a.bytes)
	}
	return a, err
}

// errOnlyBelow: no rank is asked for what lies in a segment alone.
var errOnlyBelow = errors.New("cascade: only a segment has it")

// misread reports bytes that failed their checksum: no hit.
func (s *Store) misread(copies []directory.Statement) error {
	s.mu.Lock()
	s.mu.stats.Corrupt++
	s.mu.Unlock()
	s.log.Error("block read from another rank fails its checksum", "owner", copies[0].Owner, "key", copies[0].Name.Key)
	return tiers.ErrCorrupt
}

// untilRoom is ctx for the part of a fetch that waits for room in memory: after
// half of the time there is for all, the block is read into memory of its own.
func (s *Store) untilRoom(ctx context.Context) (context.Context, context.CancelFunc) {
	l := s.limits.Load()
	return context.WithTimeout(ctx, min(l.RoomDeadline, l.FetchDeadline/2))
}

// arrivalRoom returns memory for a block that is fetched: if keep, in the last
// memory tier, unless ctx ends before there is room.
func (s *Store) arrivalRoom(ctx context.Context, size int64, keep bool, most price) (*arrival, error) {
	if keep {
		slot, err := s.reserve(ctx, s.last(), size, most)
		if err == nil {
			return &arrival{bytes: slot.Bytes(), slot: slot}, nil
		}
		if errors.Is(err, ErrClosed) {
			return nil, err
		}
	}
	if size == 0 {
		return &arrival{free: func() {}}, nil
	}
	if s.landing != nil {
		if bytes, release, ok := s.landing(size); ok {
			return &arrival{bytes: bytes, free: release}, nil
		}
	}
	m, err := arena.MapAnonymous(size)
	if err != nil {
		return nil, err
	}
	return &arrival{bytes: m.Bytes(), free: func() {
		if err := m.Close(); err != nil {
			s.log.Error("private memory", "err", err)
		}
	}}, nil
}

// publishArrivalLocked hands a block to those who wait for it: from a place of
// its own in memory, or from private memory, as which a slot serves too if the
// name has changed meanwhile.
func (s *Store) publishArrivalLocked(f *fetch, a *arrival) {
	if a.slot == nil || s.mu.remote[f.name] != f || s.roomForNameLocked(f.name.ns, f.name.key) != nil {
		s.landLocked(f, a)
		return
	}
	b, fresh := s.adoptLocked(f, a)
	if b == nil {
		return
	}
	for range f.waiters {
		v, err := s.pinInLocked(b, s.last(), a.tier)
		if err != nil {
			s.noteLocked(s.last(), err)
			return
		}
		v.checked = fresh
		f.views = append(f.views, v)
	}
}

// adoptLocked makes an arrival a copy of this rank's own, with the put stamp of
// what it is a copy of. A name that was put here meanwhile stays what it is. It
// returns the block that is in memory then, nil for none, and whether it lies
// there since now.
func (s *Store) adoptLocked(f *fetch, a *arrival) (b *blockState, fresh bool) {
	defer a.slot.Abort()
	m, st := s.last(), f.copies[0]
	if n := s.lookupLocked(f.name.ns, f.name.key); n != nil {
		if stateOf(n).In(m.index) {
			b = stateOf(n)
		}
		return b, false
	}
	info := st.Info
	pending := info.ID.IsProvisional()
	if pending {
		info.ID = s.provisionalLocked()
	}
	if b = s.foundLocked(info); b == nil {
		return nil, false
	}
	catalogued := fromCatalogue(f.copies)
	if catalogued && len(b.Names()) == 0 && !b.cold {
		b.from = st.Segment
	}
	if b.fingerprint == 0 {
		b.fingerprint = fingerprint(f.name.ns, f.name.key)
	}
	if fresh = !b.In(m.index); fresh {
		if err := a.slot.Commit(info, nil); err != nil {
			s.noteLocked(m, err)
			s.forgetLocked(b)
			return nil, false
		}
		s.enterLocked(b, m)
		m.stats.Promoted++
	}
	s.mu.names.Copy(st.Name, &b.Block, s.now())
	s.applyLocked()
	if pending {
		s.pending.push(b)
	}
	if !catalogued {
		s.mu.stats.Replicas++
	}
	return b, fresh
}

// landLocked serves a block that is not kept. Fetched ahead, it stays for a
// while for the get to come.
func (s *Store) landLocked(f *fetch, a *arrival) {
	l := &landed{arrival: a, info: f.copies[0].Info, users: 1}
	for range f.waiters {
		f.views = append(f.views, s.landedViewLocked(l, newBlock(l.info))) // no block of this rank's
	}
	if f.reserved > 0 && f.waiters == 0 && !s.mu.closed && s.mu.remote[f.name] == f {
		l.until = s.now().Add(prefetchFor)
		f.landed = l
		return
	}
	l.leaveLocked()
}

// landed is private memory with a block, shared by its views.
type landed struct {
	*arrival
	info  block.Info
	users int       // its views, and the store while it waits for a get
	until time.Time // how long it waits
}

// leaveLocked ends one use.
func (l *landed) leaveLocked() {
	if l.users--; l.users == 0 {
		l.abort()
	}
}

// landedViewLocked is a view of b in private memory.
func (s *Store) landedViewLocked(l *landed, b *blockState) *View {
	b.busy++
	s.mu.stats.Views++
	s.begin()
	l.users++
	return &View{store: s, bytes: l.bytes, block: b, id: l.info.ID, tier: l.tier, free: func() {
		s.mu.Lock()
		l.users--
		last := l.users == 0
		s.mu.Unlock()
		if last {
			l.abort()
		}
	}}
}
