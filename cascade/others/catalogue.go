package others

import (
	"context"
	"errors"
	"time"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
	"cascadekv/tiers"
)

// A cold tier with a catalogue finds what other ranks and earlier jobs left
// there without a block or a name in this store. What it finds is a statement
// of another rank that has only a segment, and is served as such: located, read,
// verified, kept in memory. A name that this store has itself always comes first;
// when it goes, older records of it in the catalogue are invalid.

const (
	// freshStep is how many names are published before their homes are waited for:
	// what is not sent yet is on the heap. freshWait bounds that wait, for a home
	// may not answer.
	freshStep = 8192
	freshWait = time.Second
)

// PublishFresh publishes the names that the catalogue has had since its last round.
func (x *Exchange) PublishFresh(ctx context.Context) error {
	published := 0
	return x.EachCatalogued(true, nil, func(st directory.Statement) {
		x.Peers.Publish(st)
		if published++; published%freshStep == 0 {
			ctx, cancel := context.WithTimeout(ctx, freshWait)
			defer cancel()
			x.Peers.Settled(ctx)
		}
	})
}

// GiveWay withdraws names of this store that were put before what was found of
// them elsewhere.
func (x *Exchange) GiveWay(found []tiers.Found) {
	for len(found) > 0 {
		n := min(len(found), adoptStep)
		x.giveWaySome(found[:n])
		found = found[n:]
	}
}

func (x *Exchange) giveWaySome(found []tiers.Found) {
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	for _, f := range found {
		x.state.Mu.Names.Observe(f.Name.Seq)
		n := x.state.Mu.Names.Get(f.Name.Namespace, f.Name.Key)
		switch {
		case n == nil || n.Block() == nil || n.Put() >= f.Name.Seq:
		case !f.Dropped && f.Info.ID == n.Block().Info.ID && f.Name.Seq-n.Put() < names.MovedWithin: // the same put
		case f.Dropped:
			x.withdrawnLocked(&f.Name)
		default:
			x.state.WithdrawLocked(n)
		}
	}
	x.state.WakeWaitersLocked()
}

// withdrawnLocked withdraws a name that was put before a withdrawal of it that was found in files. One that
// was moved here, as of just after that, stays: it is what replaced the record that was withdrawn.
func (x *Exchange) withdrawnLocked(w *block.Name) {
	if n := x.state.Mu.Names.Get(w.Namespace, w.Key); n != nil && n.Block() != nil && n.Seq() >= w.Seq && n.Seq()-w.Seq < names.MovedWithin {
		x.InvalidateLocked(residency.NameID{NS: w.Namespace, Key: w.Key}, w.Seq)
		return
	}
	x.UnbindBeforeLocked(w.Namespace, w.Key, w.Seq)
}

// UnbindBeforeLocked unbinds a name that was put before the given stamp, and
// reports whether there was one. A stamp just above the put is no other record of it: the name was deleted,
// or another put of the same tick stays, and what this rank has recorded of the put later goes too.
func (x *Exchange) UnbindBeforeLocked(ns, key string, stamp uint64) bool {
	id := residency.NameID{NS: ns, Key: key}
	x.InvalidateLocked(id, stamp)
	n := x.state.Mu.Names.Get(ns, key)
	if n == nil || n.Block() == nil || n.Put() >= stamp {
		return false
	}
	gone, seq := stamp == n.Put()+1, n.Seq()
	if !gone && seq >= stamp && x.insistsLocked(n) {
		return false
	}
	x.state.Count.LostLocked(losslog.Replaced, nil, n)
	x.state.WithdrawLocked(n)
	if gone {
		x.InvalidateLocked(id, seq+1)
	}
	return true
}

// insistsLocked reports whether a name stays that was put before a stamp, and recorded later: it was moved here, or is recorded
// here again, and the stamp is that of another rank's record of the same put. If this rank's files have a younger one,
// its withdrawal would make the other void: the name is stated as of its record, and the other rank gives way. What is in
// memory alone does, for the other's is durable.
func (x *Exchange) insistsLocked(n *names.Name) bool {
	b := residency.BlockOf(n)
	if b.Writing { // it is stated once more when its record is durable
		return true
	}
	if recorded := b.Cold && !b.Below.OtherOwner || b.From != nil && !n.Copied(); !recorded {
		return false
	}
	x.state.Mu.Names.SetPutAsRecorded(n)
	x.EnqueuePublishLocked(n)
	return true
}

// IsCatalogued reports whether a copy is one of the catalogue's: ranks count their versions
// from 1.
func IsCatalogued(st directory.Statement) bool { return st.Version == 0 }

// FromCatalogue reports whether copies are a statement of the catalogue.
func FromCatalogue(copies []directory.Statement) bool { return IsCatalogued(copies[0]) }

// Catalogued finds keys in the catalogue, in parallel to them: nil for a miss,
// and for all when there is no catalogue.
func (x *Exchange) Catalogued(ns string, keys []string) [][]directory.Statement {
	if !x.HasParts.Load() {
		return make([][]directory.Statement, len(keys))
	}
	find := x.Catalogue.Find
	if ns == directory.Contents {
		find = x.findBlocks
	}
	return x.stated(ns, keys, find(ns, keys))
}

// CataloguedUnasked is Catalogued for what no request asks for: keys of a namespace that
// Probe has found there before.
func (x *Exchange) CataloguedUnasked(ns string, keys []string) [][]directory.Statement {
	return x.stated(ns, keys, x.Catalogue.Peek(ns, keys))
}

// findBlocks is Catalogue.Find in directory.Contents.
func (x *Exchange) findBlocks(ns string, keys []string) []tiers.Found {
	ids := make([]block.ID, len(keys))
	for i, key := range keys {
		if id, ok := directory.ContentID(key); ok {
			ids[i] = id // else it is zero, as that of no block
		}
	}
	found := x.Catalogue.Blocks(ids)
	for i := range found {
		found[i].Name = block.Name{Namespace: ns, Key: keys[i], Seq: directory.ContentSeq}
	}
	return found
}

// stated makes statements of what the catalogue found, but for what is invalid.
func (x *Exchange) stated(ns string, keys []string, found []tiers.Found) [][]directory.Statement {
	copies := make([][]directory.Statement, len(keys))
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	here := x.state.Mu.Names.Space(ns)
	for i := range found {
		f := &found[i]
		if !f.Info.ID.IsZero() && !x.guarded.tombstones.Has(&f.Name) && !isNewer(here, keys[i], f.Name.Seq) {
			copies[i] = []directory.Statement{statementOf(f)}
		}
	}
	return copies
}

// probeCatalogue adds to hits the keys that are in the catalogue and not invalid, and reports
// whether there are bound names among them.
func (x *Exchange) probeCatalogue(ns string, keys []string, hits []Hit) (bound bool) {
	if !x.HasParts.Load() {
		return false
	}
	present := x.Catalogue.Probe(ns, keys)
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	here := x.state.Mu.Names.Space(ns)
	for i, p := range present {
		if !p.Found || x.guarded.tombstones.Invalid(ns, keys[i], p.Seq) || isNewer(here, keys[i], p.Seq) {
			continue
		}
		hits[i] = Hit{Found: true, Size: p.Size}
		bound = bound || p.Bound
	}
	return bound
}

// isNewer reports whether a namespace of this rank, nil for none, has a later put of a name
// than that stamped seq. If it is not visible, it has expired, or is bound and has no parent:
// what it replaced is no answer.
func isNewer(here *names.Space, key string, seq uint64) bool {
	if here == nil {
		return false
	}
	n := here.Get(key)
	return n != nil && n.Block() != nil && n.Put() > seq
}

func statementOf(f *tiers.Found) directory.Statement {
	at := directory.Segment(f.Segment)
	return directory.Statement{Name: f.Name, Info: f.Info, Segment: &at}
}

// EachCatalogued calls fn with this rank's statement of every name that only the
// catalogue has and for which want is true; nil wants all.
func (x *Exchange) EachCatalogued(fresh bool, want func(ns, key string) bool, fn func(directory.Statement)) error {
	if x.Catalogue == nil {
		return nil
	}
	return x.Catalogue.Names(fresh, func(f tiers.Found) bool {
		if want != nil && !want(f.Name.Namespace, f.Name.Key) {
			return true
		}
		x.state.Mu.Lock()
		n := x.state.Mu.Names.Get(f.Name.Namespace, f.Name.Key)
		here := n != nil && n.Block() != nil
		st := statementOf(&f)
		st.Version = x.state.TickLocked()
		invalid, closed := x.guarded.tombstones.Has(&f.Name), x.state.Mu.Closed
		x.state.Mu.Unlock()
		if !here && !invalid {
			fn(st)
		}
		return !closed
	})
}

// AddCatalogued adds to statements of names that are not here what the catalogue
// has of them. The caller does not hold the mutex.
func (x *Exchange) AddCatalogued(batch []directory.Statement) {
	if !x.HasParts.Load() {
		return
	}
	for i := range batch {
		st := &batch[i]
		if st.Has() {
			continue
		}
		keys := []string{st.Name.Key}
		if copies := x.stated(st.Name.Namespace, keys, x.Catalogue.Peek(st.Name.Namespace, keys))[0]; copies != nil {
			version := st.Version
			*st = copies[0]
			st.Version = version
		}
	}
}

// LostSegment takes a block that is not where the catalogue has it out of it.
func (x *Exchange) LostSegment(ctx context.Context, st *directory.Statement, err error) {
	if errors.Is(err, tiers.ErrCorrupt) {
		x.state.Mu.Lock()
		x.state.Count.Stats.Corrupt++
		x.state.Mu.Unlock()
	}
	// A catalogue that does not take it is broken, and begun anew.
	_ = x.Catalogue.Forget(ctx, tiers.Found{Info: st.Info, Name: st.Name, Segment: tiers.Segment(*st.Segment)})
}

// FirstOwn is where a scan of what the catalogue has of this rank begins. It marks all
// cursors of such a scan: Redis's clients take cursors of 64 bits, some with a sign.
const FirstOwn = 1 << 62

// InOwn reports whether a cursor is one of ScanOwn.
func InOwn(cursor uint64) bool { return cursor&FirstOwn != 0 }

// replaced reports whether what the catalogue found of a name was deleted, or put anew
// with a life that is over.
func (x *Exchange) replaced(f *tiers.Found) bool {
	x.state.Mu.Lock()
	defer x.state.Mu.Unlock()
	n := x.state.Mu.Names.Get(f.Name.Namespace, f.Name.Key)
	over := n != nil && n.Block() != nil && n.Put() > f.Name.Seq && !n.Visible(x.state.Now)
	return over || x.guarded.tombstones.Has(&f.Name)
}

// scanOwnStep bounds the names that a scan of the catalogue reads before fn is called.
const scanOwnStep = 64

// ScanOwn calls fn for the visible ones of the names that the catalogue has of this rank's
// own files, from a cursor on, until some names after it returns false: see
// tiers.Catalogue. The caller does not hold the mutex.
func (x *Exchange) ScanOwn(ctx context.Context, ns string, cursor uint64, fn func(key string) bool) (uint64, error) {
	for more := true; more; {
		var step []tiers.Found
		next, err := x.Catalogue.ScanOwn(ns, false, cursor&^FirstOwn<<2, func(f tiers.Found) bool {
			if !x.replaced(&f) {
				step = append(step, f)
			}
			return len(step) < scanOwnStep
		})
		for _, key := range x.visible(ctx, ns, step) {
			more = fn(key) && more
		}
		if next == 0 || err != nil {
			return 0, err
		}
		cursor = FirstOwn | next>>2
	}
	return cursor, nil
}

// visible returns the keys of what was found, but for bound names whose parent is nowhere.
func (x *Exchange) visible(ctx context.Context, ns string, found []tiers.Found) (keys []string) {
	var bound []*block.Name
	for i := range found {
		if n := &found[i].Name; n.Bound {
			bound = append(bound, n)
		} else {
			keys = append(keys, n.Key)
		}
	}
	for i, is := range x.parentsVisible(ctx, ns, bound, 1) {
		if is {
			keys = append(keys, bound[i].Key)
		}
	}
	return keys
}
