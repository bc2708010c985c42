package others

import (
	"testing"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/writeback"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
)

const size = 1000 // of the blocks of these tests

// watcher hands an exchange what a state reports.
type watcher struct {
	*parttest.Watcher
	x *Exchange
}

func (w watcher) EnqueuePublishLocked(n *names.Name)         { w.x.EnqueuePublishLocked(n) }
func (w watcher) EnqueuePublishAllLocked(b *residency.Block) { w.x.EnqueuePublishAllLocked(b) }
func (w watcher) InvalidateLocked(id residency.NameID, below uint64) {
	w.x.InvalidateLocked(id, below)
}

// rank is a rank with an exchange, peers and a catalogue.
type rank struct {
	*parttest.Rank
	*Exchange
	files *parttest.Files
	known *parttest.Catalogue
	peers *parttest.Peers
}

// newRank returns one whose publisher does not run.
func newRank(t *testing.T, change ...func(*residency.Options)) *rank {
	r := &rank{files: parttest.NewFiles(t), peers: &parttest.Peers{}}
	r.known = r.files.Shared()
	r.Rank = parttest.New(t, append([]func(*residency.Options){r.files.Use}, change...)...)
	write := writeback.New(r.State, eviction.New(r.State), r.Seen)
	r.Exchange = New(r.State, eviction.NewNameBudget(r.State), write, r.Seen)
	r.Watch = watcher{r.Seen, r.Exchange}
	r.Peers = r.peers
	r.HasParts.Store(true)
	return r
}

// invalid reports whether what the catalogue has of a name is.
func (r *rank) invalid(n *block.Name) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.InvalidLocked(n)
}

// published reports whether all that changed was handed to the peers.
func (r *rank) published() bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.PublishedLocked()
}

// stamp is a tick of the rank's clock.
func (r *rank) stamp() uint64 {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.TickLocked()
}

// invalidate invalidates all that the catalogue has of a name.
func (r *rank) invalidate(key string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.InvalidateLocked(residency.NameID{NS: "ns", Key: key}, r.TickLocked())
}
