package others

import (
	"context"
	"slices"
	"sync/atomic"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/eviction"
	"cascadekv/cascade/residency"
	"cascadekv/cascade/tombstones"
	"cascadekv/cascade/writeback"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/locks"
	"cascadekv/tiers"
)

// Exchange is what this rank publishes to other ranks, and finds of what they and
// earlier jobs stored. It is safe for concurrent use.
type Exchange struct {
	state     *residency.State
	nameRoom  *eviction.NameBudget
	write     *writeback.Writer
	load      Fetches
	Catalogue tiers.Catalogue // of the cold tier, nil: none

	Peers      Peers       // nil: this rank is alone
	HasParts   atomic.Bool // the catalogue was given parts: until then it is empty. Set with State.Mu held
	leavePeers context.CancelFunc

	flush       chan struct{} // has the catalogue withdraw what was invalidated
	flushing    *locks.Token
	unpublished publishQueue
	counted     atomic.Pointer[OwnNames] // nil: not yet
	odds        estimate.Odds            // that others have in memory what they are asked for
	publishing  locks.Mutex              // from when names are taken from unpublished until they are published

	guarded struct { // by State.Mu
		tombstones tombstones.Set // entries of the catalogue that this rank has invalidated
	}
}

// Fetches are the blocks on their way to this rank.
type Fetches interface {
	// InvalidateFetchLocked forgets what is fetched of puts of a name stamped below
	// before. State.Mu is held.
	InvalidateFetchLocked(id residency.NameID, before uint64)

	// InvalidateFetchesLocked is InvalidateFetchLocked for all names of a namespace, or of
	// all.
	InvalidateFetchesLocked(ns string, all bool, before uint64)
}

// New returns the exchange of a rank that has no peers yet.
func New(s *residency.State, n *eviction.NameBudget, w *writeback.Writer, f Fetches) *Exchange {
	x := &Exchange{
		state: s, nameRoom: n, write: w, load: f, leavePeers: func() {}, unpublished: newPublishQueue(),
		flush: make(chan struct{}, 1), flushing: locks.NewToken(locks.Flushing),
	}
	x.publishing.SetRank(locks.Publishing)
	if s.Cold != nil {
		x.Catalogue = s.Cold.Files.Catalogue()
	}
	x.guarded.tombstones = tombstones.New()
	return x
}

// JoinLocked sets the peers, from whom Leave parts. What was not published before
// is published in the background from then on.
func (x *Exchange) JoinLocked(p Peers) {
	x.state.Mu.AssertHeld()
	x.Peers = p
	work, stop := context.WithCancel(context.Background())
	x.leavePeers = stop
	x.state.Workers.Go(func() { x.publishInBackground(work) })
}

// Leave ends publishing.
func (x *Exchange) Leave() { x.leavePeers() }

// SyncInTurn has the cold tier make changes of names durable that were made before.
func (x *Exchange) SyncInTurn(ctx context.Context) error { return x.write.SyncInTurn(ctx) }

// SweepLocked forgets tombstones that are no longer needed.
func (x *Exchange) SweepLocked() {
	x.state.Mu.AssertHeld()
	x.guarded.tombstones.Sweep(x.state.Now())
}

// InvalidLocked reports whether a name of the catalogue was invalidated.
func (x *Exchange) InvalidLocked(n *block.Name) bool {
	x.state.Mu.AssertHeld()
	return x.guarded.tombstones.Has(n)
}

// OutdatedLocked reports whether one of a block's copies is the catalogue's, and its name was invalidated
// since: then none of them may be read for that name.
func OutdatedLocked(x *Exchange, copies []directory.Statement) bool {
	return slices.ContainsFunc(copies, func(st directory.Statement) bool {
		return IsCatalogued(st) && x.InvalidLocked(&st.Name)
	})
}
