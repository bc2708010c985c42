package load

import (
	"cascadekv/cascade/eviction"
	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
)

// Loader brings blocks to this rank, each once for all who ask for it meanwhile:
// from the cold tier, from other ranks, and from segments that others left. It is
// safe for concurrent use.
type Loader struct {
	state    *residency.State
	evict    *eviction.Evictor
	nameRoom *eviction.NameBudget
	others   *others.Exchange

	fetching *semaphore    // of what is read from the cold tier
	lifting  *semaphore    // of what is read from the deep level: what hangs in the one does not hold up the other
	reading  chan struct{} // capacity maxReads: who reads from other ranks

	guarded struct { // by State.Mu
		replicate     replication
		fetches       map[source]*Fetch // under way, or landed
		prefetchBytes int64             // of what is prefetched, or about to be
		lookups       lookups
		own           onItsWay
	}
}

// New returns the loader of a rank.
func New(s *residency.State, e *eviction.Evictor, n *eviction.NameBudget, x *others.Exchange) *Loader {
	ld := &Loader{
		state: s, evict: e, nameRoom: n, others: x,
		fetching: newSemaphore(fetchPlaces), lifting: newSemaphore(fetchPlaces), reading: make(chan struct{}, maxReads),
	}
	ld.guarded.replicate = newReplication()
	ld.guarded.lookups.ld = ld
	ld.guarded.fetches = map[source]*Fetch{}
	return ld
}
