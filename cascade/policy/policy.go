package policy

import "time"

// Node is the number of a block in one policy: a small integer given by Insert,
// dense, reused after Remove.
type Node uint32

// Meta describes a block to a policy.
type Meta struct {
	Fingerprint uint64 // of the block's first name: the same when it returns after an eviction
	Size        int64  // bytes
	Depth       uint32 // blocks before it in its chain
	Prefix      bool   // marked as shared prefix by the engine
	Refs        int    // live names that point to it
	Old         bool   // when inserted: it leaves before all that were inserted without this
	Elsewhere   bool   // when admitted: it lies in a slower level too, so that nothing fails if it is refused
}

// Ref is one block of a request's chain, as one tier has it.
type Ref struct {
	Fingerprint uint64 // as in Meta; of the name that was asked for when the block is missing
	Size        int64  // bytes; 0 when not known
	Node        Node   // NoNode when the block is not in the tier
}

// NoNode is the Node of a block that is not in the tier.
const NoNode = Node(none)

// Request is one request as one tier sees it: the blocks of a chain, or of a piece
// of one, that an engine asked for or stored together.
type Request struct {
	Now time.Duration // since an arbitrary origin; it never goes back

	// Chain has the blocks head first, those that are missing included. It is
	// the caller's again when Access returns.
	Chain []Ref

	// Hits is how many blocks of the chain, from its head, were asked for: those
	// of them that are in the tier were found by the request. The rest entered
	// with it, or are ancestors that it refreshes. Only hits count as reuse.
	Hits int

	Tokens int // tokens of the request, 0 when not known

	// Hints: what an engine declares of how the blocks will be used. A policy learns what they are
	// worth, or passes over them. What is declared of blocks by itself is a request without hits.
	Shared int           // leading blocks of the chain that belong to a prompt of many conversations
	Due    time.Duration // from Now to the next request for the chain; 0 when not known
}

// Policy decides what stays in one tier. Implementations are pure and not safe for
// concurrent use; the store serialises calls.
type Policy interface {
	// Name is the word that selects the policy in configuration.
	Name() string

	// Admit reports whether a block that could enter the tier should.
	Admit(now time.Duration, m Meta) bool

	// Insert adds a block that entered the tier, with no holds.
	Insert(now time.Duration, m Meta) Node

	// Remove forgets a block that left the tier, evicted or for another reason:
	// deleted, damaged, replaced. Its holds go with it. Of those that were evicted
	// a policy may remember the fingerprint, as far as it bounds what it remembers.
	Remove(n Node, evicted bool)

	// Update has a new Meta.Prefix, Meta.Refs or Meta.Depth of a block: the store learns of
	// some names of a block after it has inserted that.
	Update(n Node, m Meta)

	// Access is called once for each request.
	Access(r *Request)

	// Hold adds a reason for n to stay, Release takes one away. A block with
	// holds is never a victim.
	Hold(n Node)
	Release(n Node)

	// Victim returns the block to evict next without removing it; false when
	// every block is held. The same block is returned until something
	// changes.
	Victim() (Node, bool)

	// Demotion returns where a victim of a memory tier goes.
	Demotion(m Meta) Demotion

	// Len is the number of blocks known to be in the tier.
	Len() int
}
