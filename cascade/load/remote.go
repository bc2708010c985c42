package load

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/others"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
	"cascadekv/internal/fault"
	"cascadekv/internal/inject"
	"cascadekv/tiers"
)

// replication decides which blocks of other ranks are kept here. Guarded by
// State.Mu.
type replication struct {
	policy *policy.Replicator
	seed   maphash.Seed
}

func newReplication() replication {
	return replication{policy: policy.NewReplicator(), seed: maphash.MakeSeed()}
}

// keeps decides about a block that is read from elsewhere. What no rank has in
// memory any more comes up here, as from this rank's own cold tier.
func (r *replication) keeps(id residency.NameID, copies []directory.Statement) bool {
	hot := r.policy.Read(maphash.Comparable(r.seed, id))
	return hot || copies[0].Memory == nil
}

// GetElsewhere gets the keys whose views are missing from other ranks; for the
// price of eviction.CopyOnly it makes copies of them here.
func (ld *Loader) GetElsewhere(ctx context.Context, ns string, keys []string, missing []int, views []*residency.View, price eviction.Price) {
	if price == eviction.CopyOnly {
		ld.invalidateLanded(ns, keys, missing)
	}
	fetches := ld.joinKnown(ns, keys, missing, views)
	var ask []int
	wait := false
	for j, i := range missing {
		if views[i] == nil && fetches[j] == nil {
			ask = append(ask, j)
		}
		wait = wait || views[i] == nil
	}
	if wait {
		ctx, cancel := ld.state.UntilFetched(ctx)
		defer cancel()
		if len(ask) > 0 {
			ld.locate(ctx, ns, keys, missing, ask, views, fetches, price)
		}
		ld.awaitMissing(ctx, fetches, missing, views)
		getMoved(ctx, ld, ns, keys, missing, views)
	}
	ld.touchOwners(ns, keys, missing, fetches, views)
}

// locate asks other ranks where some of the missing keys are, by their places in
// missing, and begins to fetch what they have.
func (ld *Loader) locate(ctx context.Context, ns string, keys []string, missing, ask []int, views []*residency.View, fetches []*Fetch, price eviction.Price) {
	wanted := make([]string, len(ask))
	for a, j := range ask {
		wanted[a] = strings.Clone(keys[missing[j]]) // it may outlive the request
	}
	found := ld.others.Located(ctx, ns, wanted)
	ld.others.AddNearer(ctx, ns, wanted, found)
	if err := ctx.Err(); err != nil {
		ld.state.Count.Losses.AddError(residency.StepLookup, err, unlocated(found))
	}
	var fresh []*Fetch
	ld.state.Mu.Lock()
	for a, j := range ask {
		if found[a] == nil || ld.state.Mu.Closed || others.OutdatedLocked(ld.others, found[a]) {
			continue
		}
		id := residency.NameID{NS: ns, Key: wanted[a]}
		if views[missing[j]], fetches[j] = ld.joinOneLocked(id); views[missing[j]] == nil && fetches[j] == nil {
			fetches[j] = ld.newRemoteLocked(id, found[a], price, &fresh)
			fetches[j].waiters++
		}
	}
	mine := ld.startLocked(fresh)
	ld.state.Mu.Unlock()
	ld.runHere(ctx, mine)
}

// unlocated counts the keys of which nobody is known to have the block.
func unlocated(found [][]directory.Statement) (n uint64) {
	for _, copies := range found {
		if copies == nil {
			n++
		}
	}
	return n
}

// joinKnown serves what was prefetched, and joins the
// fetches under way, in parallel to missing.
func (ld *Loader) joinKnown(ns string, keys []string, missing []int, views []*residency.View) []*Fetch {
	fetches := make([]*Fetch, len(missing))
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	for j, i := range missing {
		views[i], fetches[j] = ld.joinOneLocked(residency.NameID{NS: ns, Key: keys[i]})
	}
	return fetches
}

// joinOneLocked serves a name from what was prefetched, or counts the caller
// among those who wait for it; neither when it is not there.
func (ld *Loader) joinOneLocked(id residency.NameID) (*residency.View, *Fetch) {
	f := ld.guarded.fetches[source{name: id}]
	switch {
	case f == nil:
	case !f.finished:
		f.waiters++
		ld.continuePrefetchLocked(f)
		return nil, f
	case ld.state.Now().Before(f.landed.until):
		return ld.takeLandedLocked(f), f
	default:
		ld.InvalidateFetchLocked(id, math.MaxUint64)
	}
	return nil, nil
}

// getMoved gets those of the missing keys whose names are here by now: while they were looked for
// elsewhere, their spilled file was loaded again, and merged.
func getMoved(ctx context.Context, ld *Loader, ns string, keys []string, missing []int, views []*residency.View) {
	got := func(i int) bool { return views[i] != nil }
	if !slices.ContainsFunc(missing, func(i int) bool { return !got(i) }) {
		return
	}
	left := slices.DeleteFunc(slices.Clone(missing), got)
	var fresh []*Fetch
	joined := make([]*Fetch, len(left))
	ld.state.Mu.Lock()
	for j, i := range left {
		if n := residency.VisibleLocked(ld.state, ns, keys[i]); n != nil {
			b := residency.BlockOf(n)
			if views[i] = ld.state.PinNearLocked(b); views[i] == nil {
				joined[j] = ld.JoinBelowLocked(b, n, eviction.Unheld, &fresh)
			}
		}
	}
	if len(fresh) > 0 {
		ld.StartLocked(fresh)
	}
	ld.state.Mu.Unlock()
	for j, f := range joined {
		if f != nil {
			views[left[j]] = ld.Await(ctx, f)
		}
	}
}

// touchOwners reports to the owners which blocks of a chain were served here, so
// that they age there as if they had been used there.
func (ld *Loader) touchOwners(ns string, keys []string, missing []int, fetches []*Fetch, views []*residency.View) {
	var owner fabric.Rank
	var run []string // of keys of one owner
	for j, f := range fetches {
		if f == nil || views[missing[j]] == nil || f.copies[0].Memory == nil {
			continue
		}
		if o := f.copies[0].Owner; o != owner && len(run) > 0 {
			ld.others.Peers.Touch(owner, ns, run)
			run = run[:0]
		}
		owner, run = f.copies[0].Owner, append(run, keys[missing[j]])
	}
	if len(run) > 0 {
		ld.others.Peers.Touch(owner, ns, run)
	}
}

// awaitMissing is Await of all fetches, which are in parallel to missing.
func (ld *Loader) awaitMissing(ctx context.Context, fetches []*Fetch, missing []int, views []*residency.View) {
	for _, f := range fetches {
		if f != nil {
			f.wait(ctx)
		}
	}
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	for j, f := range fetches {
		if f != nil && views[missing[j]] == nil {
			views[missing[j]] = ld.viewLocked(ctx, f)
		}
	}
}

// newRemoteLocked makes the fetch of a located name of which there is none, to keep
// it here if the price is eviction.CopyOnly or the policy wants that, and adds it to fresh, which the caller
// must let StartLocked have. The caller holds the mutex, has checked that the store is
// not closed, and counts itself among the waiters if it awaits the result.
func (ld *Loader) newRemoteLocked(id residency.NameID, copies []directory.Statement, price eviction.Price, fresh *[]*Fetch) *Fetch {
	f := ld.newFetchLocked(source{name: id}, copies[0].Info)
	f.copies, f.price = copies, price
	named := id.NS != directory.Contents // what stays here needs a name
	f.keep = named && (ld.guarded.replicate.keeps(id, copies) || price == eviction.CopyOnly)
	*fresh = append(*fresh, f)
	return f
}

// readBuffer is the memory that a block is read into, before it is published.
type readBuffer struct {
	bytes []byte
	slot  tiers.Slot       // nil: private memory
	free  func()           // of private memory
	from  *residency.Level // where it came from
}

func (a *readBuffer) abort() {
	if a.slot != nil {
		a.slot.Abort()
		return
	}
	a.free()
}

// Blocks that one rank has in memory are read together, as far as they are no more
// than partReads and partBytes: so many move in a moment.
const (
	partReads = fabric.MaxBatch
	partBytes = 1 << 20
)

// remoteParts cuts fetches into what is read together, by the rank that is known
// best to have it.
func remoteParts(fetches []*Fetch) (parts [][]*Fetch) {
	type open struct {
		part  int
		bytes int64
	}
	last := map[fabric.Rank]open{}
	for _, f := range fetches {
		owner := f.copies[0].Owner
		o, ok := last[owner]
		if !ok || len(parts[o.part]) == partReads || o.bytes+f.info.Size > partBytes {
			o = open{part: len(parts)}
			parts = append(parts, nil)
		}
		parts[o.part] = append(parts[o.part], f)
		o.bytes += f.info.Size
		last[owner] = o
	}
	return parts
}

// runElsewhere fetches a part of a request from other ranks and then, what did not
// come from there, from segments in the shared file system. It outlives the request
// that wanted it, up to a deadline of its own.
func (ld *Loader) runElsewhere(part []*Fetch) {
	defer fault.Guard()()
	ctx, cancel := ld.state.UntilFetched(context.Background())
	defer cancel()
	ld.runBelow(ld.fromOthers(ctx, part), ctx.Err())
}

// runHere is runElsewhere by the one who waits for the part: that saves two changes
// of goroutines. If ctx ends first, the part goes on without it. Nil is no part; any
// other is one of state.Workers.
func (ld *Loader) runHere(ctx context.Context, part []*Fetch) {
	if part == nil {
		return
	}
	defer ld.state.Workers.Done()
	rest := ld.fromOthers(ctx, part)
	switch {
	case len(rest) == 0:
	case ctx.Err() != nil:
		ld.state.Workers.Go(func() { ld.runElsewhere(rest) })
	default:
		ld.state.Workers.Go(func() { ld.runBelow(rest, nil) })
	}
}

// runBelow looks in files for what did not come from other ranks, unless err is not
// nil: then that is the end.
func (ld *Loader) runBelow(part []*Fetch, err error) {
	defer fault.Guard()()
	ends := make([]ended, 0, len(part))
	below := part[:0]
	for _, f := range part {
		if err == nil && turnsToFiles(ld, f) {
			below = append(below, f)
		} else {
			ends = append(ends, ended{f, nil, cmp.Or(err, f.failed, residency.ErrMiss)})
		}
	}
	if err == nil {
		ld.relocate(ends...)
	} else {
		ld.end(ends...)
	}
	if len(below) > 0 {
		ld.state.Workers.Add(1)
		go ld.runFetches(ld.state.Cold, below)
	}
}

// fromOthers reads the blocks of a part from the memory of other ranks, each into a
// slot of the host level if it is to be kept, or into private memory. It
// returns the fetches that have not ended: what does not come is looked for elsewhere.
func (ld *Loader) fromOthers(ctx context.Context, part []*Fetch) (rest []*Fetch) {
	if residency.TakeSlot(ctx, ld.reading) != nil {
		return part
	}
	defer func() { <-ld.reading }()
	room := ld.roomTime(ctx, part[0].price)
	defer room.end()
	reads := make([]directory.Read, 0, len(part))
	ends := make([]ended, 0, len(part))
	for _, f := range part {
		if others.FromCatalogue(f.copies) { // no rank is asked for what lies in a segment alone
			rest = append(rest, f)
			continue
		}
		a, err := ld.allocate(room, f.info.Size, ld.admitted(f), f.price)
		if ends = append(ends, ended{f, a, err}); err == nil {
			a.from = ld.state.Remote
			reads = append(reads, directory.Read{Copies: f.copies, Dst: a.bytes})
		}
	}
	if len(reads) > 0 {
		ended := ld.state.Remote.BeganLoad(sizeOf(reads))
		ld.others.Peers.Read(ctx, reads)
		for i := range reads {
			r := &reads[i]
			_, r.Err = inject.Read(ctx, inject.Remote, int64(len(r.Dst)), r.Err, r.Dst)
		}
		ended(!slices.ContainsFunc(reads, func(r directory.Read) bool { return r.Err != nil }))
	}
	over := ends[:0]
	for _, e := range ends {
		if e.err == nil {
			e.err = ld.verified(e.f, &reads[0])
			reads = reads[1:]
		}
		if e.err != nil && e.a != nil {
			residency.AfterIO(e.err, e.a.abort)
			e.f.failed = e.err
			rest = append(rest, e.f)
			continue
		}
		over = append(over, e)
	}
	ld.end(over...)
	return rest
}

// sizeOf is how many bytes reads have.
func sizeOf(reads []directory.Read) (bytes int64) {
	for _, r := range reads {
		bytes += int64(len(r.Dst))
	}
	return bytes
}

// verified is how a read ended, its checksum included.
func (ld *Loader) verified(f *Fetch, r *directory.Read) error {
	if r.Err == nil && block.CRC(r.Dst) != f.info.CRC {
		return ld.misread(f.copies)
	}
	return r.Err
}

// misread reports bytes that failed their checksum: no hit.
func (ld *Loader) misread(copies []directory.Statement) error {
	ld.state.Mu.Lock()
	ld.state.Count.Stats.Corrupt++
	ld.state.Mu.Unlock()
	ld.state.Log.Error("block read from another rank fails its checksum", "owner", copies[0].Owner, "key", copies[0].Name.Key)
	return tiers.ErrCorrupt
}

// roomWait is the longest that a load waits for room: what memory is full of may have to be written first, and
// loads come before that.
const roomWait = 50 * time.Millisecond

// roomTime is how long the blocks of a request wait for room in memory, all together, counted from
// when the first of them has to. Those for which there is none then are read into memory of their own.
type roomTime struct {
	ctx  context.Context // of the request
	wait time.Duration

	begun sync.Once
	until context.Context // once begun
	stop  context.CancelFunc
}

// roomTime returns that of a request. What must come into the tier has half of the time there is for all.
func (ld *Loader) roomTime(ctx context.Context, most eviction.Price) *roomTime {
	l := ld.state.Limits.Load()
	r := &roomTime{ctx: ctx, wait: min(l.RoomDeadline, l.FetchDeadline/2)}
	if most == eviction.Unheld {
		r.wait = min(r.wait, roomWait)
	}
	return r
}

// begin returns the context that ends with the time.
func (r *roomTime) begin() context.Context {
	r.begun.Do(func() { r.until, r.stop = context.WithTimeout(r.ctx, r.wait) })
	return r.until
}

// end is called when nobody waits any more.
func (r *roomTime) end() {
	if r.stop != nil {
		r.stop()
	}
}

// allocate returns memory for a block that is fetched: if keep, in the
// host level, unless the time for room ends before there is some.
func (ld *Loader) allocate(room *roomTime, size int64, keep bool, most eviction.Price) (*readBuffer, error) {
	if keep {
		slot, err := reserve(room, ld, size, most)
		switch {
		case errors.Is(err, residency.ErrClosed):
			return nil, err
		case err == nil && slot.Bytes() != nil:
			return &readBuffer{bytes: slot.Bytes(), slot: slot}, nil
		case err == nil: // files and other ranks are read into the process's memory
			slot.Abort()
		}
	}
	bytes, free, err := ld.state.Buffer(size)
	if err != nil {
		return nil, err
	}
	return &readBuffer{bytes: bytes, free: free}, nil
}

// reserve is Evictor.Reserve of the host level. What leaves at once takes no time for room: a part of a long chain
// waits for its turn to be read, and may find then that there is none left.
func reserve(room *roomTime, ld *Loader, size int64, most eviction.Price) (tiers.Slot, error) {
	m := ld.state.Host()
	if slot := ld.evict.ReserveNow(m, size, most); slot != nil {
		return slot, nil
	}
	return ld.evict.Reserve(room.begin(), m, size, most)
}

// staysLocked reports whether a block from elsewhere may stay here: its name has
// not changed since it was located, is not one of this rank's in files by now, and there is room for it.
func (ld *Loader) staysLocked(f *Fetch) bool {
	if n := ld.state.LookupLocked(f.name.NS, f.name.Key); n != nil && !residency.BlockOf(n).In(ld.state.Host().Index) {
		return false
	}
	return ld.guarded.fetches[f.source] == f && ld.nameRoom.MakeRoomLocked(f.name.NS, f.name.Key) == nil
}

// copyLocked makes what was read from elsewhere a copy of this rank's own, with the
// put stamp of what it is a copy of. A name that was put here meanwhile stays what
// it is, in memory (staysLocked). It returns the block that is in memory then, nil for none, and whether
// it lies there since now.
func (ld *Loader) copyLocked(f *Fetch, slot tiers.Slot) (b *residency.Block, fresh bool, err error) {
	st := f.copies[0]
	if i := slices.IndexFunc(f.copies, others.IsCatalogued); i >= 0 {
		st = f.copies[i] // wherever the bytes were read
	}
	if n := ld.state.LookupLocked(f.name.NS, f.name.Key); n != nil {
		return residency.BlockOf(n), false, nil
	}
	info := st.Info
	pending := info.ID.IsProvisional()
	if pending {
		info.ID = ld.state.ProvisionalLocked()
	}
	if b = ld.state.FoundLocked(info); b == nil {
		return nil, false, nil
	}
	catalogued := others.IsCatalogued(st)
	if catalogued && len(b.Names()) == 0 && !b.Cold {
		b.From = st.Segment
	}
	if b.Fingerprint == 0 {
		b.Fingerprint = block.Fingerprint(f.name.NS, f.name.Key)
	}
	if fresh, err = ld.enterLocked(b, slot, nil); err != nil {
		ld.state.ForgetLocked(b)
		return nil, false, err
	}
	ld.state.Mu.Names.Copy(st.Name, &b.Block)
	ld.state.ApplyLocked()
	if catalogued && !b.Writing {
		ld.state.Cold.RestLocked(b, st.Segment)
	}
	if pending {
		ld.state.Pending.Push(b)
	}
	if !catalogued {
		ld.state.Count.Stats.Replicas++
	}
	return b, fresh, nil
}

// landLocked serves a block that is not kept in memory. If it is prefetched, it stays
// a while for the get to come.
func (ld *Loader) landLocked(f *Fetch, a *readBuffer) {
	l := &landed{readBuffer: a, info: f.info, users: 1}
	for range f.waiters {
		b := f.block
		if b == nil {
			b = residency.NewBlock(l.info) // none of this rank's
		}
		f.views = append(f.views, ld.landedViewLocked(l, b))
	}
	if f.reserved > 0 && f.waiters == 0 && !ld.state.Mu.Closed && ld.guarded.fetches[f.source] == f {
		l.until = ld.state.Now().Add(residency.PrefetchFor)
		f.landed = l
		return
	}
	l.leaveLocked()
}

// landed is private memory with a block, shared by its views.
type landed struct {
	*readBuffer
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
func (ld *Loader) landedViewLocked(l *landed, b *residency.Block) *residency.View {
	l.users++
	return ld.state.PrivateViewLocked(b, l.info.ID, l.from, l.bytes, nil, func() {
		ld.state.Mu.Lock()
		l.users--
		last := l.users == 0
		ld.state.Mu.Unlock()
		if last {
			l.abort()
		}
	})
}
