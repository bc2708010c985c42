package cascade

import (
	"context"
	"math"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/tombstones"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/inject"
	"cascadekv/internal/losslog"
)

// Here is what requests do with the names of this rank alone: with nothing but its
// memory, so that they wait for nobody. It is safe for concurrent use.
type Here struct {
	state  *residency.State
	others *others.Exchange
}

// Here returns what can be asked of this rank alone.
func (s *Store) Here() Here { return s.here }

// Contains is Store.ContainsBatch for few keys; ok is false, and nothing was looked up,
// where others have to be asked for one of them, or one is to be brought into memory.
func (h Here) Contains(ns string, keys [][]byte) (found []bool, ok bool) {
	found, missing, ok := h.lease(ns, keys, "", 0, true)
	if ok {
		lookedUp(h.state, ns, keys, found, missing)
	}
	return found, ok
}

// Lease is Store.Lease for few keys, in parallel to them; ok is false, and nothing was
// promised or looked up, where others have to be asked for one of them.
func (h Here) Lease(ns string, keys [][]byte, owner string, d time.Duration) (found []bool, ok bool) {
	found, missing, ok := h.lease(ns, keys, owner, d, false)
	if missing > 1 { // less says nothing
		h.state.Requests.NoteMissing(h.state.Now(), ns, block.Fingerprints(ns, keys...), func(i int) bool { return found[i] })
	}
	return found, ok
}

// lease is Lease, and returns how many of the keys are missing. prefetch: ok is also false where blocks
// are to be brought into memory ahead of their gets.
func (h Here) lease(ns string, keys [][]byte, owner string, d time.Duration, prefetch bool) (found []bool, missing int, ok bool) {
	if inject.Armed(inject.Lookup) {
		return nil, 0, false
	}
	found = make([]bool, len(keys))
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	missing, cold := h.lookManyLocked(ns, keys, found)
	if prefetch && cold && h.state.Requests.Prefetched.RoomLocked() && h.state.Requests.Prefetched.Pays() {
		return nil, 0, false
	}
	if missing > 0 && h.others.AsksElsewhere() {
		return nil, 0, false
	}
	h.state.Count.LookupsLocked(ns, uint64(len(keys)), uint64(len(keys)-missing))
	if sp := h.state.Mu.Names.Space(ns); sp != nil && d > 0 {
		for i, key := range keys {
			if n := sp.GetBytes(key); n != nil && found[i] {
				h.state.Leases.RenewLocked(n, owner, d)
			}
		}
	}
	return found, missing, true
}

// unanswered reports whether a look-up of n keys fails, and counts them as lost then.
func (h Here) unanswered(ctx context.Context, n int) bool {
	err := inject.Wait(ctx, inject.Lookup)
	if err != nil {
		h.state.Count.Losses.AddError(residency.StepLookup, err, uint64(n))
	}
	return err != nil
}

// noOther counts a block as lost whose copy in memory was bad, unless there is another.
func (h Here) noOther(is bool) {
	if !is {
		h.state.Count.Losses.Add(residency.StepPin, "corrupt", 1)
	}
}

// locateParent looks for what is known of an entry's parent, if only the catalogue has it.
func (h Here) locateParent(e *Entry) {
	if e.Parent == "" || !h.state.Cold.Spilled() || h.state.ContainsHere(e.Namespace, e.Parent) {
		return
	}
	if f := h.others.Catalogue.Peek(e.Namespace, []string{e.Parent})[0]; !f.Info.ID.IsZero() {
		e.depth, e.away = f.Name.Depth+1, &f.Name.Expires
	}
}

// bindLocked points the name that an entry describes at a block.
func (h Here) bindLocked(e *Entry, b *residency.Block, now time.Time) *names.Name {
	n := h.state.BindLocked(e.record(), e.KeepTTL, b, now)
	if e.away != nil {
		h.state.Mu.Names.SetAway(e.Namespace, e.Parent, *e.away)
	}
	return n
}

func (h Here) stat(ns, key string) (NameInfo, bool) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	n := residency.VisibleLocked(h.state, ns, key)
	if n == nil {
		return NameInfo{}, false
	}
	b := residency.BlockOf(n)
	info := NameInfo{
		ID: b.Info.ID, Size: b.Info.Size, Parent: n.ParentKey(), Inferred: n.Inferred(), Depth: n.Depth(),
		Refs: len(b.Names()), Prefix: n.Prefix(), Expires: n.Expires(), Dirty: b.Dirty(),
	}
	for _, m := range h.state.Mem {
		if b.In(m.Index) {
			info.Tiers = append(info.Tiers, m.Stats.Name)
		}
	}
	if b.Cold {
		info.Tiers = append(info.Tiers, h.state.ColdName())
	}
	if ns == directory.Contents { // the name is one of several, of any namespace
		info.Parent, info.Inferred, info.Depth, info.Prefix, info.Expires = "", false, 0, false, time.Time{}
	}
	return info, true
}

// delete withdraws a name from this rank, a hidden one too, and returns a stamp that no
// earlier put has passed.
func (h Here) delete(ns, key string) (visible bool, stamp uint64) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	if n := h.state.Mu.Names.Get(ns, key); n != nil && n.Block() != nil {
		visible = n.Visible(h.state.Now)
		h.state.Count.LostLocked(losslog.Deleted, nil, n)
		h.state.UnbindLocked(n)
		h.state.WakeWaitersLocked()
	}
	stamp = h.state.TickLocked()
	h.others.InvalidateLocked(residency.NameID{NS: ns, Key: key}, stamp)
	return visible, stamp
}

func (h Here) expire(ns, key string, at time.Time) bool {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	n := h.state.LookupLocked(ns, key)
	if n == nil {
		return false
	}
	h.state.Mu.Names.Expire(n, at, h.state.Now())
	h.state.ApplyLocked()
	return true
}

// tick returns a stamp that all puts on this rank so far have passed, and none after it.
func (h Here) tick() uint64 {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	return h.state.TickLocked()
}

// clear is Clear on this rank, of puts stamped below before; what the catalogue has is
// withdrawn later.
func (h Here) clear(ns string, all bool, before uint64) (total int, left *tombstones.Clearing) {
	spaces := []string{ns}
	if all {
		spaces = h.state.Namespaces()
	}
	for _, space := range spaces {
		for next := math.MaxInt; next > 0; {
			var n int
			n, next = h.clearSome(space, before, next)
			total += n
		}
	}
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	if before < math.MaxUint64 {
		h.state.Mu.Names.Observe(before)
	}
	return total, h.others.InvalidateAllLocked(ns, all, before)
}

// clearSome withdraws some names, from a place in the list on down, and returns the next place, 0
// at the end: see scan.
func (h Here) clearSome(ns string, before uint64, from int) (n, next int) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	sp := h.state.Mu.Names.Space(ns)
	if sp == nil {
		return 0, 0
	}
	defer h.state.WakeWaitersLocked()
	next = min(from, len(sp.List()))
	for range min(next, sweepStep) {
		next--
		if next = min(next, len(sp.List())-1); next < 0 { // one can take others with it
			return n, 0
		}
		one := sp.List()[next]
		if before == math.MaxUint64 {
			h.state.UnbindLocked(one)
		} else if one.Put() >= before || !h.others.UnbindBeforeLocked(ns, one.Key(), before) {
			continue
		}
		h.state.Count.LostLocked(losslog.Cleared, nil, one)
		n++
	}
	return n, next
}

// scanMany is Store.Scan of what is in this rank's memory; catalogued: with what a scan of
// the catalogue lists too.
func (h Here) scanMany(ns string, cursor uint64, count int, catalogued bool, fn func(key string) bool) uint64 {
	keys := make([]string, 0, min(count, scanStep))
	for more := true; more && count > 0; count -= scanStep {
		keys, cursor = h.scan(ns, cursor, min(count, scanStep), catalogued, keys[:0])
		for _, key := range keys {
			more = fn(key) && more
		}
		more = more && cursor > 0
	}
	return cursor
}

// scan adds to keys those of at most count names that are visible, with those that a scan
// of the catalogue lists or without.
func (h Here) scan(ns string, cursor uint64, count int, catalogued bool, keys []string) ([]string, uint64) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	sp := h.state.Mu.Names.Space(ns)
	if sp == nil {
		return keys, 0
	}
	// The list is walked from its end down: a removal moves the last name to a
	// place below it, which is still to come, so no name is passed over.
	next := uint64(len(sp.List()))
	if cursor > 0 {
		next = min(next, cursor)
	}
	for ; next > 0 && count > 0; count-- {
		next--
		if n := sp.List()[next]; n.Visible(h.state.Now) && (catalogued || !h.state.Cold.CataloguedLocked(residency.BlockOf(n))) {
			keys = append(keys, n.Key())
		}
	}
	return keys, next
}

// lookMany marks which keys are visible on this rank and returns how many are
// not, and whether one that is has its block in this rank's files, or its deep level, alone.
func (h Here) lookMany(ns string, keys [][]byte, found []bool) (missing int, cold bool) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	return h.lookManyLocked(ns, keys, found)
}

func (h Here) lookManyLocked(ns string, keys [][]byte, found []bool) (missing int, cold bool) {
	h.state.Mu.AssertHeld()
	if ns == directory.Contents {
		for i, key := range keys {
			if found[i] = residency.VisibleLocked(h.state, ns, string(key)) != nil; !found[i] {
				missing++
			}
		}
		return missing, false
	}
	sp := h.state.Mu.Names.Space(ns)
	if sp == nil {
		return len(keys), false
	}
	for i, key := range keys {
		n := sp.GetBytes(key)
		if found[i] = n != nil && n.Visible(h.state.Now); !found[i] {
			missing++
		} else if !h.state.InNear(residency.BlockOf(n)) {
			cold = true
		}
	}
	return missing, cold
}

// probe looks up the keys on this rank, to the first that is missing if it
// can be nowhere else.
func (h Here) probe(ns string, keys []string) []presence {
	here := make([]presence, len(keys))
	for at := 0; at < len(keys); at += residency.LookStep {
		end := min(at+residency.LookStep, len(keys))
		if !h.probeMany(ns, keys[at:end], here[at:end]) && !h.others.AsksElsewhere() {
			break
		}
	}
	return here
}

// probeMany looks up some keys on this rank, likewise, and is false when one is
// missing.
func (h Here) probeMany(ns string, keys []string, here []presence) (all bool) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	sp, byID := h.state.Mu.Names.Space(ns), ns == directory.Contents
	if sp == nil && !byID {
		return false
	}
	all = true
	for i, key := range keys {
		var n *names.Name
		if byID {
			n = residency.VisibleLocked(h.state, ns, key)
		} else {
			n = sp.Get(key)
		}
		if n != nil && n.Visible(h.state.Now) {
			here[i] = presence{h.state.FastestLocked(residency.BlockOf(n)).Stats.Name, residency.BlockOf(n).Info.Size}
		} else if all = false; !h.others.AsksElsewhere() {
			break
		}
	}
	return all
}

// infos describes the blocks of some keys, in parallel to them; zero for those that are not here.
func (h Here) infos(ns string, keys []string) []block.Info {
	infos := make([]block.Info, len(keys))
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	for i, key := range keys {
		if n := residency.VisibleLocked(h.state, ns, key); n != nil {
			infos[i] = residency.BlockOf(n).Info
		}
	}
	return infos
}

// sweepEnded ends some leases and names that are due, and reports whether there are
// more.
func (h Here) sweepEnded(now time.Time) (more bool) {
	h.state.Mu.Lock()
	defer h.state.Mu.Unlock()
	defer h.state.WakeWaitersLocked()
	for range sweepStep {
		if h.state.Mu.Names.EndLease(now) {
			h.state.ApplyLocked()
			continue
		}
		n := h.state.Mu.Names.NextExpired(now)
		if n == nil {
			return false
		}
		h.state.Count.LostLocked(losslog.Ended, nil, n)
		residency.EndLocked(h.state, n)
	}
	return true
}
