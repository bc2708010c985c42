package names

import (
	"time"

	"cascadekv/internal/block"
)

// Levels bounds the memory levels of a rank. Each takes 4 bytes of every name, and of every
// block 8 more in package residency.
const Levels = 3

// Name is a node of the chain graph: a name with a block, or the placeholder of
// a parent that is not stored, kept while it has children.
type Name struct {
	space    *Space
	record   block.Name // Namespace and Key always; the rest while block is set
	parent   *Name
	block    *Block
	index    int   // in space.list while it has a block
	nth      int   // in block.names
	children int32 // names whose parent this is
	stored   int32 // of them, those with a block

	// resident counts, by level, the children whose block is there. Where this
	// name's own block is there too, each of them is a hold on it.
	resident [Levels]int32

	Slot uint32 // see Queued

	leases []*Lease

	// put is the put stamp, by the clock of record.Seq: of copies of other
	// ranks' blocks that of the original, and never changed by what only
	// concerns this rank, as Seq is.
	put    uint64
	copied bool // of a copy, which is recorded where the original is
	away   bool // of a placeholder: the catalogue has the name, as far as known

	// Queued and Slot belong to the owner of the graph: whether the name is in
	// its publishing queue, and its place in the shared index.
	Queued bool
}

// Space returns the namespace.
func (n *Name) Space() *Space { return n.space }

// Block returns the block that n stands for, nil of a placeholder.
func (n *Name) Block() *Block { return n.block }

// Parent returns the node before n in its chain, nil at the head.
func (n *Name) Parent() *Name { return n.parent }

// Record returns n as tiers record it.
func (n *Name) Record() block.Name { return n.record }

// Namespace returns Record's; so do the following with theirs.
func (n *Name) Namespace() string { return n.record.Namespace }

// Key returns the key, opaque bytes.
func (n *Name) Key() string { return n.record.Key }

// ParentKey returns the key of the parent, "" at the head of a chain.
func (n *Name) ParentKey() string { return n.record.Parent }

// Depth returns how many blocks come before n in its chain.
func (n *Name) Depth() uint32 { return n.record.Depth }

// Inferred reports whether nobody named the parent.
func (n *Name) Inferred() bool { return n.record.Inferred }

// Prefix reports whether n is marked as a shared prefix.
func (n *Name) Prefix() bool { return n.record.Prefix }

// Bound reports whether n is visible only while its parent is.
func (n *Name) Bound() bool { return n.record.Bound }

// Expires returns when n stops being visible; zero: never.
func (n *Name) Expires() time.Time { return n.record.Expires }

// Ended reports whether the time of n is over. The clock is read only where a name
// expires.
func (n *Name) Ended(now func() time.Time) bool {
	return !n.record.Expires.IsZero() && !now().Before(n.record.Expires)
}

// Seq returns when n was last recorded.
func (n *Name) Seq() uint64 { return n.record.Seq }

// Put returns the put stamp.
func (n *Name) Put() uint64 { return n.put }

// Copied reports whether n is of a copy of another rank's block, or of one that the
// catalogue has: it is recorded there.
func (n *Name) Copied() bool { return n.copied }

// Leads reports whether a child of n has a block.
func (n *Name) Leads() bool { return n.stored > 0 }

// Resident returns how many children of n have their block in a level.
func (n *Name) Resident(level int) int { return int(n.resident[level]) }

// Leased reports whether somebody has a lease of n.
func (n *Name) Leased() bool { return len(n.leases) > 0 }

// MaxBound bounds how long a chain of bound names is followed.
const MaxBound = 8

// Visible reports whether clients may see n. A bound name is hidden while its
// parent is, so that one of a pair is not served without the other.
func (n *Name) Visible(now func() time.Time) bool {
	for depth := 0; ; depth++ {
		if n.block == nil && (depth == 0 || !n.away) || n.Ended(now) {
			return false
		}
		if n.away || !n.record.Bound {
			return true
		}
		// A ring of bound names can only be built by hand; none of it is visible.
		if n.parent == nil || depth > MaxBound {
			return false
		}
		n = n.parent
	}
}

// A name takes about nameCost bytes of heap with a block of its own, in all
// tiers together, besides its key and its parent's: see cascade's
// TestHeapOfNames. What is copied of a key is counted by keyCopies.
const (
	nameCost  = 1280
	keyCopies = 3
)

// Cost returns about how many bytes of heap a name with a block takes.
func Cost(key, parent string) int64 {
	return nameCost + keyCopies*int64(len(key)) + int64(len(parent))
}

func (n *Name) cost() int64 { return Cost(n.record.Key, n.record.Parent) }

// setParent moves n under the key parent, "" for none. A parent that descends
// from n is refused by leaving n without one: chains are trees.
func (n *Name) setParent(parent string) {
	old := n.parent
	if old != nil && old.record.Key == parent {
		return
	}
	n.parent = nil
	if parent != "" {
		p := n.space.node(parent)
		if n.children == 0 || !p.descends(n) {
			n.parent = p
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
func (n *Name) descends(from *Name) bool {
	for range maxWalk {
		if n == nil || n == from {
			return n != nil
		}
		n = n.parent
	}
	return true
}

// prune drops nodes that stand for nothing: no block and no children.
func (n *Name) prune() {
	for n != nil && n.block == nil && n.children == 0 {
		delete(n.space.byKey, n.record.Key)
		parent := n.parent
		n.parent = nil
		if parent != nil {
			parent.children--
		}
		n = parent
	}
}

// addStored counts one child more or less of n that has a block.
func (n *Name) addStored(by int32) {
	was := n.stored > 0
	n.stored += by
	if is := n.stored > 0; is != was && n.block != nil {
		if is {
			n.block.leading++
		} else {
			n.block.leading--
		}
	}
}
