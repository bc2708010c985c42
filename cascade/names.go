package cascade

import (
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// space is one namespace: its names and its counters.
type space struct {
	name       string
	byKey      map[string]*name
	list       []*name // names with a block, dense, for Scan
	referenced int64   // bytes
	recovered  int     // names, when the store was opened

	// As in NamespaceStats.
	puts, aliases, lookups, found, hits, misses uint64
}

// name is a node of the chain graph: a name with a block, or the placeholder
// of a parent that is not stored, kept while it has children.
type name struct {
	space    *space
	entry    block.Name // Namespace and Key always; the rest while block is set
	parent   *name
	block    *blockState
	index    int   // in space.list while it has a block
	nth      int   // in block.names
	children int32 // names whose parent this is
	stored   int32 // of them, those with a block

	// resident counts, by memory tier, the children whose block is there.
	// Where this name's own block is there too, each of them is a hold on it.
	resident [maxMemory]int32

	leases []*lease

	// put is the put stamp, by the clock of entry.Seq: of copies of other
	// ranks' blocks that of the original, and never changed by what only
	// concerns this rank, as Seq is.
	put            uint64
	publishPending bool // in Store.mu.unpublished

	shown uint32 // place in the shared index, if that has it as this name's
}

// entity is one stored block: what the store knows of it and where it is.
type blockState struct {
	info      block.Info
	names     []*name
	nameStats // of names
	at        [maxMemory]place
	cold      bool     // in the cold tier
	below     standing // of this rank's blocks there

	// from is where the catalogue has the block of which this is a copy; nil: it
	// does not. Such a copy is not dirty, and leaves as it came.
	from *directory.Segment

	linkSeq uint64 // Store.told when the cold tier was last told of a name of it

	busy    int    // views and copies in flight: reasons not to forget it
	writing bool   // on its way to the cold tier
	fetch   *fetch // on its way from the cold tier

	countedDirty, countedPending bool // in Stats: see accountLocked
}

// place is an entity's residence in one memory tier. stay tells one residence
// from the next.
type place struct {
	present bool
	node    policy.Node
	stay    uint64
}

func (b *blockState) inMemory() bool {
	for _, p := range b.at {
		if p.present {
			return true
		}
	}
	return false
}

func (b *blockState) dirty() bool { return !b.hasLowerCopy() && b.inMemory() }

// hasLowerCopy reports whether memory may lose b without loss.
func (b *blockState) hasLowerCopy() bool { return b.cold || b.from != nil }

func (s *Store) spaceLocked(ns string) *space {
	sp := s.mu.spaces[ns]
	if sp == nil {
		sp = &space{name: ns, byKey: map[string]*name{}}
		s.mu.spaces[ns] = sp
	}
	return sp
}

// node returns the name or placeholder of key, making one when needed.
func (sp *space) node(key string) *name {
	n := sp.byKey[key]
	if n == nil {
		n = &name{space: sp, entry: block.Name{Namespace: sp.name, Key: key}}
		sp.byKey[key] = n
	}
	return n
}

// lookupLocked returns a visible name, or nil.
func (s *Store) lookupLocked(ns, key string) *name {
	n := s.knownLocked(ns, key)
	if n == nil || !n.visible(s.now) {
		return nil
	}
	return n
}

// knownLocked returns a name or placeholder, visible or not, or nil.
func (s *Store) knownLocked(ns, key string) *name {
	sp := s.mu.spaces[ns]
	if sp == nil {
		return nil
	}
	return sp.byKey[key]
}

// visible tells whether clients may see n. A bound name hides while its parent
// does, so that half a pair is never served.
func (n *name) visible(now func() time.Time) bool {
	for depth := 0; ; depth++ {
		if n.block == nil || (!n.entry.Expires.IsZero() && !now().Before(n.entry.Expires)) {
			return false
		}
		if !n.entry.Bound {
			return true
		}
		// A ring of bound names can only be built by hand; none of it is visible.
		if n.parent == nil || depth > maxBound {
			return false
		}
		n = n.parent
	}
}

// maxBound bounds how long a chain of bound names is followed.
const maxBound = 8

// bindLocked points the name e at b, in memory and in the tiers' records,
// replacing what it pointed to. Whatever instant the process dies at, one of
// the two versions is on record: the new one is written before the old one
// goes.
func (s *Store) bindLocked(e Entry, b *blockState) *name {
	b.from = nil // the catalogue does not have this name of it
	n := s.rebindLocked(e, b, 0)
	n.put = n.entry.Seq
	return n
}

// bindCopyLocked binds a name as another rank has it.
func (s *Store) bindCopyLocked(st block.Name, b *blockState) {
	s.mu.seq = max(s.mu.seq, st.Seq)
	n := s.rebindLocked(Entry{
		Namespace: st.Namespace, Key: st.Key, Parent: st.Parent,
		Prefix: st.Prefix, Bound: st.Bound, Expires: st.Expires,
	}, b, st.Depth)
	n.put = st.Seq
}

// rebindLocked points the name e at b; depth is its depth unless its parent
// says.
func (s *Store) rebindLocked(e Entry, b *blockState, depth uint32) *name {
	sp := s.spaceLocked(e.Namespace)
	n := sp.node(e.Key)
	was, old := n.block, n.entry
	if was != nil {
		s.endLeasesLocked(n)
		s.detachLocked(n)
		if e.Bound {
			s.logRemovedLocked(n, was)
		}
	}
	n.setParent(e.Parent)
	n.entry = block.Name{
		Namespace: sp.name, Key: n.entry.Key, Parent: e.Parent, Depth: depth,
		Prefix: e.Prefix, Bound: e.Bound, Expires: e.Expires,
	}
	if was != nil && e.KeepTTL {
		n.entry.Expires = old.Expires
	}
	if n.parent != nil {
		n.entry.Parent = n.parent.entry.Key // one copy of it
	}
	if n.parent != nil && n.parent.block != nil {
		n.entry.Depth = n.parent.entry.Depth + 1
	}
	s.rerecordLocked(n, b, was, old)
	if was != b || old.Bound {
		s.logStoredLocked(n)
	}
	if was != nil && len(was.names) == 0 {
		s.forgetLocked(was)
	}
	return n
}

// rerecordLocked attaches n to the block to and moves its record there from the
// block was (nil: none), where it is old. The withdrawal of the old record lies
// between the two in time, for a tier may take it for one of every record
// before it.
func (s *Store) rerecordLocked(n *name, to, was *blockState, old block.Name) {
	old.Seq = s.tickLocked()
	n.entry.Seq = s.tickLocked()
	s.attachLocked(n, to)
	s.recordLocked(to, n.entry)
	if was != nil && was != to {
		s.unrecordLocked(was, old)
	}
}

// attachLocked makes n a live name of b.
func (s *Store) attachLocked(n *name, b *blockState) {
	n.block = b
	b.add(n)
	n.enlist()
	n.countStored(s, 1)
	n.space.referenced += b.info.Size
	s.mu.stats.BytesReferenced += b.info.Size
	s.mu.names++
	s.mu.nameBytes += n.cost()
	s.enqueuePublishLocked(n)
	s.accountLocked(b)
	for t := range s.mem {
		if b.at[t].present {
			s.holdTimesLocked(b, t, n.resident[t])
			s.countChildLocked(n, t)
		}
	}
	s.updatePoliciesLocked(b)
	if !n.entry.Expires.IsZero() {
		s.mu.expiries.push(n, s.mu.names)
	}
	s.showLocked(n)
}

// countStored counts n among its parent's children with a block, or no more.
func (n *name) countStored(s *Store, by int32) {
	if n.parent != nil {
		n.parent.lead(by)
		s.syncColdHoldLocked(n.parent.block)
	}
}

// enlist gives n a place among its namespace's names, if it has none.
func (n *name) enlist() {
	if list := n.space.list; n.index < len(list) && list[n.index] == n {
		return
	}
	n.index = len(n.space.list)
	n.space.list = append(n.space.list, n)
}

// delist takes n's place away.
func (n *name) delist() {
	last := n.space.list[len(n.space.list)-1]
	n.space.list[n.index], last.index = last, n.index
	n.space.list = n.space.list[:len(n.space.list)-1]
}

// detachLocked undoes attach. The block stays, even without names; n keeps its
// place in the list, so that no scan passes over a name that only changes its
// block.
func (s *Store) detachLocked(n *name) {
	b := n.block
	for t := range s.mem {
		if b.at[t].present {
			s.uncountChildLocked(n, t)
			for range n.resident[t] {
				s.releaseLocked(b, t)
			}
		}
	}
	n.block = nil
	n.countStored(s, -1)
	s.enqueuePublishLocked(n)
	b.remove(n)
	n.space.referenced -= b.info.Size
	s.mu.stats.BytesReferenced -= b.info.Size
	s.mu.names--
	s.mu.nameBytes -= n.cost()
	s.accountLocked(b)
	s.updatePoliciesLocked(b)
}

// unbindLocked withdraws n from its block, in memory and in the tiers' records,
// forgets the block with its last name, and the node if nothing needs it.
func (s *Store) unbindLocked(n *name) {
	id, seq := nameID{n.entry.Namespace, n.entry.Key}, s.tickLocked()
	s.withdrawLocked(n, seq)
	s.invalidateLocked(id, seq)
}

// withdrawLocked is unbind as of a tick.
func (s *Store) withdrawLocked(n *name, seq uint64) {
	b := n.block
	s.endLeasesLocked(n)
	gone := n.entry
	gone.Seq = seq
	s.unrecordLocked(b, gone)
	s.detachLocked(n)
	s.logRemovedLocked(n, b)
	s.hideLocked(n)
	n.delist()
	if len(b.names) == 0 {
		s.forgetLocked(b)
	}
	n.prune()
	s.leaveSpaceLocked(n.space)
}

// unbindBeforeLocked unbinds a name that was put before the given stamp, and
// tells whether there was one.
func (s *Store) unbindBeforeLocked(ns, key string, stamp uint64) bool {
	s.invalidateLocked(nameID{ns, key}, stamp)
	n := s.knownLocked(ns, key)
	if n == nil || n.block == nil || n.put >= stamp {
		return false
	}
	s.unbindLocked(n)
	return true
}

// setParent moves n under the key parent, "" for none. A parent that descends
// from n is refused by leaving n without one: chains are trees.
func (n *name) setParent(parent string) {
	old := n.parent
	if old != nil && old.entry.Key == parent {
		return
	}
	if parent == "" {
		n.parent = nil
	} else {
		p := n.space.node(parent)
		if n.children > 0 && p.descends(n) {
			p = nil
		}
		n.parent = p
		if p != nil {
			p.children++
		}
	}
	if old != nil {
		old.children--
		old.prune()
	}
}

// maxWalk bounds how many ancestors are looked through for one that may be the
// descendant too.
const maxWalk = 16 << 10

// descends reports whether n is from or may descend from it: it does not look
// further up than maxWalk.
func (n *name) descends(from *name) bool {
	for range maxWalk {
		if n == nil || n == from {
			return n != nil
		}
		n = n.parent
	}
	return true
}

// prune drops nodes that stand for nothing: no block and no children.
func (n *name) prune() {
	for n != nil && n.block == nil && n.children == 0 {
		delete(n.space.byKey, n.entry.Key)
		parent := n.parent
		n.parent = nil
		if parent != nil {
			parent.children--
		}
		n = parent
	}
}

// recordLocked writes a name into every tier that holds its block, unrecord
// takes it out as of its Seq. A tier that can not is left without: it then
// loses the name at a crash, which is a miss.
func (s *Store) recordLocked(b *blockState, n block.Name) {
	for t, m := range s.mem {
		if b.at[t].present {
			s.noteLocked(m, m.tier.Link(b.info.ID, n))
		}
	}
	if b.cold {
		s.linkColdLocked(b, n)
	}
}

func (s *Store) linkColdLocked(b *blockState, n block.Name) {
	s.noteLinkLocked(s.cold.Link(b.info.ID, n))
	b.linkSeq = s.mu.linkSeq
}

func (s *Store) unrecordLocked(b *blockState, n block.Name) {
	for t, m := range s.mem {
		if b.at[t].present {
			s.noteLocked(m, m.tier.Unlink(b.info.ID, n))
		}
	}
	if b.cold {
		s.noteLinkLocked(s.cold.Unlink(b.info.ID, n))
	}
}

// tickLocked returns the next sequence number: a hybrid clock (block.Name.Seq).
func (s *Store) tickLocked() uint64 {
	s.mu.seq = max(s.mu.seq+1, uint64(s.now().UnixNano()))
	return s.mu.seq
}
