package cascade

import (
	"context"
	"errors"
	"slices"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// voiding is what of the catalogue is void. Guarded by the store's mutex.
type voiding struct {
	names map[nameID]void
	queue []nameID    // of names that the catalogue has not withdrawn yet
	clear []*clearing // of whole namespaces
	wake  chan struct{}
	turn  chan struct{} // holds one while somebody has the catalogue withdraw them
}

// void says that puts of a name stamped below are void.
type void struct {
	below uint64
	done  time.Time // when the catalogue had withdrawn them; zero before
}

// clearing says that puts stamped below are void, of a namespace or of all.
type clearing struct {
	ns    string
	all   bool
	below uint64
	names int // that were withdrawn therefore so far; guarded by the store's mutex
}

const (
	// voidFor is how long a name is remembered after the catalogue has withdrawn
	// it: whoever found it before has asked for its block by then.
	voidFor = 10 * time.Second

	// voidStep is how many names the catalogue withdraws at once.
	voidStep = 512

	// clearSync is after how many steps a clearing has the tier sync.
	clearSync = 32

	// voidRetry is when to try again what the catalogue, or the tier under it,
	// refused.
	voidRetry = 2 * time.Second
)

func newVoiding() voiding {
	return voiding{names: map[nameID]void{}, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// isVoid reports whether a name of the catalogue does not count. The caller
// holds the mutex.
func (s *Store) isVoid(n *block.Name) bool {
	if v := s.void.names[nameID{n.Namespace, n.Key}]; n.Seq < v.below {
		return true
	}
	for _, c := range s.void.clear {
		if n.Seq < c.below && (c.all || c.ns == n.Namespace) {
			return true
		}
	}
	return false
}

// supersede voids what the catalogue has of puts of a name stamped below. The
// caller holds the mutex.
func (s *Store) supersede(id nameID, below uint64) {
	if !s.others.Load() {
		return
	}
	s.outrun(id, below)
	v, known := s.void.names[id]
	if known && below <= v.below {
		return
	}
	if !known || !v.done.IsZero() {
		s.void.queue = append(s.void.queue, id)
	}
	s.void.names[id] = void{below: below}
	s.wakeVoiding()
}

// supersedeAll voids all that the catalogue has of a namespace, or of all. The
// caller holds the mutex.
func (s *Store) supersedeAll(ns string, all bool) *clearing {
	c := &clearing{ns: ns, all: all, below: s.tick()}
	if s.others.Load() {
		s.void.clear = append(s.void.clear, c)
		s.wakeVoiding()
	}
	return c
}

func (s *Store) wakeVoiding() {
	select {
	case s.void.wake <- struct{}{}:
	default:
	}
}

// voidInBackground has the catalogue withdraw what is void.
func (s *Store) voidInBackground(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.void.wake:
		case <-again:
		}
		again = nil
		if err := s.settleVoid(ctx); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.noteCold(err)
			s.mu.Unlock()
			again = time.After(voidRetry)
		}
	}
}

// settleVoid has the catalogue withdraw what is void now.
func (s *Store) settleVoid(ctx context.Context) (err error) {
	if s.catalogue == nil {
		return nil
	}
	if err := takeSlot(ctx, s.void.turn); err != nil {
		return err
	}
	defer func() { <-s.void.turn }()
	for more := true; more && err == nil; {
		more, err = s.settleNames(ctx)
	}
	for err == nil {
		s.mu.Lock()
		if len(s.void.clear) == 0 {
			s.mu.Unlock()
			break
		}
		c := s.void.clear[0]
		s.mu.Unlock()
		err = s.settleClearing(ctx, c)
	}
	return err
}

// lastVoid is settleVoid before the tiers are closed. What the catalogue does not
// take is recorded all the same, so that it is void when the catalogue is begun
// anew.
func (s *Store) lastVoid(ctx context.Context) {
	err := s.settleVoid(ctx)
	if err == nil {
		return
	}
	s.log.Warn("what is void of what other ranks left is not withdrawn in the catalogue", "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.void.queue {
		s.tellCold(s.cold.Unlink(block.ID{}, block.Name{Namespace: id.ns, Key: id.key, Seq: s.void.names[id].below - 1}))
	}
}

// settleNames withdraws some single names and reports whether there are more.
func (s *Store) settleNames(ctx context.Context) (more bool, err error) {
	s.mu.Lock()
	ids := s.void.queue[:min(len(s.void.queue), voidStep)]
	names := make([]block.Name, len(ids))
	for i, id := range ids {
		names[i] = block.Name{Namespace: id.ns, Key: id.key, Seq: s.void.names[id].below}
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return false, nil
	}
	there, err := s.catalogue.Withdraw(ctx, names...)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	var tell []directory.Statement
	for i, id := range ids {
		if there[i] {
			s.tellCold(nil)
		}
		tell = append(tell, s.state(id.ns, id.key)) // it may have been stated when a part was this rank's
	}
	s.void.queue = s.void.queue[len(ids):]
	for i, id := range ids {
		if v := s.void.names[id]; v.below == names[i].Seq {
			s.void.names[id] = void{below: v.below, done: s.now()}
		} else {
			s.void.queue = append(s.void.queue, id) // again meanwhile
		}
	}
	more, peers := len(s.void.queue) > 0, s.peers
	s.mu.Unlock()
	if peers != nil {
		s.fillIn(tell)
		peers.Publish(tell...)
	}
	return more, nil
}

// settleClearing withdraws the names of a namespace, or all.
func (s *Store) settleClearing(ctx context.Context, c *clearing) error {
	var some []block.Name
	var failed error
	steps := 0
	walked := s.catalogue.Names(false, func(f tiers.Found) bool {
		if f.Name.Seq < c.below && (c.all || c.ns == f.Name.Namespace) {
			some = append(some, block.Name{Namespace: f.Name.Namespace, Key: f.Name.Key, Seq: c.below})
		}
		if len(some) == clearStep {
			failed = s.withdrawCleared(ctx, c, some)
			some = some[:0]
			// The tier keeps a bounded number of withdrawals in mind.
			if steps++; steps%clearSync == 0 && failed == nil {
				failed = s.syncInTurn(ctx)
			}
		}
		return failed == nil
	})
	if err := errors.Join(failed, walked); err != nil {
		return err
	}
	if err := s.withdrawCleared(ctx, c, some); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.void.clear = slices.DeleteFunc(s.void.clear, func(other *clearing) bool { return other == c })
	return nil
}

// syncInTurn is syncCold for those without the cleaning token.
func (s *Store) syncInTurn(ctx context.Context) error {
	if err := takeSlot(ctx, s.cleaning); err != nil {
		return err
	}
	defer func() { <-s.cleaning }()
	return s.syncCold(ctx)
}

// withdrawCleared withdraws some names of a clearing.
func (s *Store) withdrawCleared(ctx context.Context, c *clearing, some []block.Name) error {
	if len(some) == 0 {
		return nil
	}
	there, err := s.catalogue.Withdraw(ctx, some...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellCold(nil)
	for _, was := range there {
		if was {
			c.names++
		}
	}
	return nil
}

// sweepVoid forgets names that the catalogue has withdrawn some time ago. The
// caller holds the mutex.
func (s *Store) sweepVoid(now time.Time) {
	for id, v := range s.void.names {
		if !v.done.IsZero() && now.Sub(v.done) >= voidFor {
			delete(s.void.names, id)
		}
	}
}
