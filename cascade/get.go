package cascade

import (
	"context"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/load"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/inject"
)

// GetOption changes how blocks are got.
type GetOption uint8

const (
	// Unverified leaves the checksum of a memory hit to the caller, who reads the
	// bytes once, to send them, and passes the CRC32C of what was read to View.Verify
	// before the last byte goes.
	Unverified GetOption = 1 << iota

	// Resident is for blocks that are to stay in memory on this rank: those that only
	// others have are copied here, and what finds no place in memory is a miss. It
	// implies Unverified.
	Resident

	// Uncounted is for keys that were asked for a moment ago, and found where they could not be
	// used: it is no request of the policies, nor of the statistics but for CountGot.
	Uncounted
)

func optionsOf(how []GetOption) (all GetOption) {
	for _, o := range how {
		all |= o
	}
	return all
}

// Get returns a pinned view of the block that (ns, key) names (CASCADE
// Algorithm 2). In directory.Contents the key is a block's id. The caller must
// Release it. The error matches ErrMiss for anything the caller can answer by
// computing the block, a failing tier included.
func (s *Store) Get(ctx context.Context, ns, key string, how ...GetOption) (*View, error) {
	views, err := s.GetBatch(ctx, ns, []string{key}, how...)
	if err != nil {
		return nil, err
	}
	if views[0] == nil {
		return nil, ErrMiss
	}
	return views[0], nil
}

// GetBatch gets the keys of one chain, head first, as one request of the
// eviction policy. Misses are nil. The error is ErrClosed or nil.
func (s *Store) GetBatch(ctx context.Context, ns string, keys []string, how ...GetOption) ([]*View, error) {
	options := optionsOf(how)
	if options&Resident != 0 {
		return s.getResident(ctx, ns, keys)
	}
	return s.get(ctx, ns, keys, getting{verify: options&Unverified == 0, uncounted: options&Uncounted != 0})
}

// CountGot counts what was got Uncounted: views, nil for each miss.
func CountGot(s *Store, ns string, views []*View) { s.count(ns, views, getting{}) }

// PinDeep is load.PinDeep.
func PinDeep(s *Store, ns string, keys []string) []*View { return load.PinDeep(s.load, ns, keys) }

// getting is how blocks are got.
type getting struct {
	verify    bool           // memory hits are checked
	uncounted bool           // see Uncounted
	price     eviction.Price // CopyOnly: all has to have a place in memory, and what only others have too
	joined    *bool          // if not nil, set where a fetch is joined that was begun for less
}

func (s *Store) get(ctx context.Context, ns string, keys []string, how getting) ([]*View, error) {
	views := make([]*View, len(keys))
	if s.here.unanswered(ctx, len(keys)) {
		s.count(ns, views, how)
		return views, nil
	}
	waits, missing, err := s.pinResident(ns, keys, views, how)
	if err != nil {
		return views, err
	}
	if len(missing) > 0 {
		s.load.GetElsewhere(ctx, ns, keys, missing, views, how.price)
	}
	s.check(ctx, ns, keys, views, how.verify) // while others are on their way
	if len(waits) > 0 {
		s.awaitAll(ctx, waits, views)
		s.check(ctx, ns, keys, views, how.verify)
	}
	s.evict.Promote(ctx, views)
	s.count(ns, views, how)
	return views, nil
}

// check compares hits in memory with their checksums if verify, each once, reads
// what the process can not address, and gets from elsewhere what fails.
func (s *Store) check(ctx context.Context, ns string, keys []string, views []*View, verify bool) {
	for _, i := range residency.CheckAll(ctx, views, verify) {
		views[i].Release()
		views[i] = s.getBelow(ctx, ns, keys[i])
	}
}

// wait is a key of a batch whose block is on its way from the cold tier.
type wait struct {
	index int
	fetch *load.Fetch
}

// awaitAll waits for what is on its way, all together for as long as one fetch
// may take.
func (s *Store) awaitAll(ctx context.Context, waits []wait, views []*View) {
	ctx, cancel := s.state.UntilFetched(ctx)
	defer cancel()
	for _, w := range waits {
		views[w.index] = s.load.Await(ctx, w.fetch)
	}
}

// pinResident pins all that is in memory, starts to fetch what is in the cold
// tier, and passes the request to the policies. missing are the keys to be
// looked for elsewhere.
func (s *Store) pinResident(ns string, keys []string, views []*View, how getting) (waits []wait, missing []int, err error) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	if err := s.state.CheckOpenLocked(); err != nil {
		return nil, nil, err
	}
	var fresh []*load.Fetch
	left := s.state.Requests.BeginLocked()
	for i, key := range keys {
		looked := how.uncounted || s.state.Requests.LookedLocked(ns, key, &left)
		n := residency.VisibleLocked(s.state, ns, key)
		if n == nil {
			if !looked {
				s.state.Requests.AddMissLocked(block.Fingerprint(ns, key))
			}
			if s.others.AsksElsewhere() {
				missing = append(missing, i)
			}
			continue
		}
		b := residency.BlockOf(n)
		s.state.Requests.UsedLocked(b)
		if !looked {
			s.state.Requests.AddLocked(b)
		}
		if err := inject.Err(inject.Pin); err != nil {
			s.state.NoteLocked(s.state.Host(), err)
		} else if views[i] = s.state.PinNearLocked(b); views[i] != nil {
			continue
		}
		if f := s.load.JoinBelowLocked(b, n, how.price, &fresh); f != nil {
			if how.joined != nil && f.Price() < how.price {
				*how.joined = true
			}
			waits = append(waits, wait{i, f})
		} else {
			s.state.Count.Losses.Add(residency.StepPin, "unavailable", 1)
		}
	}
	s.load.StartLocked(fresh)
	s.state.Requests.PassLocked(true)
	return waits, missing, nil
}

// getBelow gets a block whose copy in memory turned out to be bad.
func (s *Store) getBelow(ctx context.Context, ns, key string) *View {
	s.state.Mu.Lock()
	n := residency.VisibleLocked(s.state, ns, key)
	if n == nil {
		s.state.Mu.Unlock()
		view := make([]*View, 1)
		if s.others.AsksElsewhere() { // it was a copy of what lies there
			s.load.GetElsewhere(ctx, ns, []string{key}, []int{0}, view, eviction.Unheld)
		}
		s.here.noOther(view[0] != nil)
		return view[0]
	}
	b := residency.BlockOf(n)
	if v := s.state.PinNearLocked(b); v != nil { // another copy
		s.state.Mu.Unlock()
		if v.Check(ctx, true) {
			return v
		}
		v.Release()
		s.state.Mu.Lock()
	}
	var fresh []*load.Fetch
	f := s.load.JoinBelowLocked(b, n, eviction.Unheld, &fresh)
	s.load.StartLocked(fresh)
	s.state.Mu.Unlock()
	s.here.noOther(f != nil)
	if f == nil {
		return nil
	}
	ctx, cancel := s.state.UntilFetched(ctx)
	defer cancel()
	return s.load.Await(ctx, f)
}

// count adds a request's hits and misses to the statistics.
func (s *Store) count(ns string, views []*View, how getting) {
	if len(views) == 0 || how.uncounted {
		return
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	missed := uint64(0)
	for _, v := range views {
		if v == nil {
			missed++
			continue
		}
		s.state.Count.GotLocked(ns, v)
	}
	s.state.Count.MissesLocked(ns, missed)
}

// Contains reports whether (ns, key) is visible on some rank. It is not an
// access.
func (s *Store) Contains(ctx context.Context, ns, key string) bool {
	found := s.state.ContainsHere(ns, key) || s.others.LocatedOne(ctx, ns, key) != nil
	s.state.Count.Lookup(ns, found)
	return found
}
