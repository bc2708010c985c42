package policy

import "time"

// Node is a block as one policy knows it: a small integer given by Insert,
// dense, reused after Remove.
type Node uint32

// Meta is what a policy may know of a block.
type Meta struct {
	Fingerprint uint64 // stable identity across eviction and return
	Size        int64  // bytes
	Depth       uint32 // blocks before it in its chain
	Prefix      bool   // marked as shared prefix by the engine
	Refs        int    // live names that point to it
	Old         bool   // when inserted: it leaves before all that were inserted without this
}

// Policy ranks the blocks of one tier. Implementations are pure and not safe
// for concurrent use; the store serialises calls. Time is a duration since an
// arbitrary origin and never goes back.
type Policy interface {
	// Name is the word that selects the policy in configuration.
	Name() string

	// Insert adds a block that entered the tier, with no holds.
	Insert(now time.Duration, m Meta) Node

	// Remove forgets a block that left the tier. Its holds go with it.
	Remove(n Node)

	// Update tells that Meta.Prefix or Meta.Refs changed.
	Update(n Node, m Meta)

	// Access tells of one request. chain lists the resident blocks of its
	// chain, head first. The first hits of them were found by the request;
	// the rest entered with it, or are ancestors that it refreshed. Only hits
	// count as reuse.
	Access(now time.Duration, chain []Node, hits int)

	// Hold adds a reason for n to stay, Release takes one away. A block with
	// holds is never a victim.
	Hold(n Node)
	Release(n Node)

	// Victim returns the block to evict next without removing it; false when
	// every block is held. The same block is returned until something
	// changes.
	Victim() (Node, bool)

	// Len is the number of blocks known to be in the tier.
	Len() int
}
