package fabrictest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
)

const nap = 2500 * time.Millisecond // of handlers whose call is to end sooner

// sleepers starts calls that will not be answered for a while, and returns
// when they have arrived. The function that it returns collects their errors.
func (s *suite) sleepers(t *testing.T, r Remote, n int) (wait func() []error) {
	t.Helper()
	errs := make([]error, n)
	var calls sync.WaitGroup
	for i := range errs {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			errs[i] = r.Sleep(ctx, nap)
		})
	}
	s.eventually(t, "the calls have arrived", func() bool {
		st, err := r.Stats(s.context(t, patience))
		return err == nil && st.Running > int64(n)
	}, func() any { return r.Rank })
	return func() []error {
		calls.Wait()
		return errs
	}
}

func (s *suite) peerGone(t *testing.T) {
	r, p := s.far(), s.Peers[0]
	src := s.put(t, r, 1<<20, 6)
	g := s.target(t, src.Length)
	wait := s.sleepers(t, r, 4)
	p.State = fabric.Gone
	s.Fabric.SetPeer(p)
	for _, err := range wait() {
		wantErr(t, "a call under way to a peer that is Gone", err, fabric.ErrUnreachable)
	}
	_, err := s.Fabric.Call(s.context(t, patience), r.Rank, message(9))
	wantErr(t, "a call of a peer that is Gone", err, fabric.ErrUnreachable)
	s.readFails(t, r, src, g, fabric.ErrUnreachable)
	for _, other := range s.remotes()[1:] {
		if _, err := s.Fabric.Call(s.context(t, patience), other.Rank, message(9)); err != nil {
			t.Errorf("%v while %v is Gone: %v", other.Rank, r.Rank, err)
		}
	}

	// A healed partition: the same process is there again.
	for _, p.State = range []fabric.State{fabric.Alive, fabric.Suspect, fabric.Alive} {
		s.Fabric.SetPeer(p)
		g.reset()
		s.readSoon(t, r, src, g, 6)
	}
	s.evict(t, r, src)
}

// readSoon reads src once the fabric has found the way to a peer.
func (s *suite) readSoon(t *testing.T, r Remote, src fabric.Source, g *target, seed uint64) {
	t.Helper()
	var err error
	s.eventually(t, "the peer can be read again", func() bool {
		err = s.Fabric.Read(s.context(t, patience), r.Rank, src, g.dst)
		if err := Settled(s.context(t, patience), err); err != nil {
			t.Fatal(err)
		}
		return err == nil
	}, func() any { return err })
	if err := Check(g.dst, seed, 0); err != nil {
		t.Error(err)
	}
}

func (s *suite) peerRestarted(t *testing.T) {
	if s.Restart == nil {
		t.Skip("this fabric's peers can not be restarted here")
	}
	r, p := s.far(), s.Peers[0]
	wait := s.sleepers(t, r, 4)
	now := s.Restart(p)
	if now.Rank != p.Rank || now.Incarnation <= p.Incarnation {
		t.Fatalf("Restart made %+v of %+v", now, p)
	}
	s.Fabric.SetPeer(now)
	for _, err := range wait() {
		wantErr(t, "a call under way to an incarnation that was replaced", err, fabric.ErrUnreachable)
	}
	s.Peers[0] = now
	p.State = fabric.Gone
	s.Fabric.SetPeer(p) // late news of the old incarnation
	var err error
	s.eventually(t, "the new incarnation answers", func() bool {
		_, err = s.Fabric.Call(s.context(t, patience), r.Rank, message(9))
		return err == nil
	}, func() any { return err })
	src := s.put(t, r, 1<<20, 8)
	s.readSoon(t, r, src, s.target(t, src.Length), 8)
	s.evict(t, r, src)
}

// closing closes the fabric while everything is in use.
func (s *suite) closing(t *testing.T) {
	var users sync.WaitGroup
	var waits []func() []error
	for _, r := range s.remotes() {
		src := s.put(t, r, 2<<20, 11)
		waits = append(waits, s.sleepers(t, r, 4))
		for range 2 {
			g := s.target(t, src.Length)
			users.Go(func() {
				wantErr(t, "a read when the fabric closes", s.readOn(t, r, src, g), fabric.ErrClosed)
			})
			users.Go(func() {
				wantErr(t, "a call when the fabric closes", s.callOn(t, r), fabric.ErrClosed)
			})
		}
		if r.Rank == s.Fabric.Self() {
			continue
		}
		// It ends when its sleepers have: that is after Close.
		if err := r.Quit(s.context(t, patience)); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(20 * time.Millisecond)
	if err := s.Fabric.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if st := s.self.Stats(); st.Running != 0 || st.Holds != 0 {
		t.Errorf("after Close: %+v", st)
	}
	for _, wait := range waits {
		for _, err := range wait() {
			wantErr(t, "a call under way when the fabric closes", err, fabric.ErrClosed)
		}
	}
	users.Wait()
	s.closed(t)
	for _, b := range s.self.generations() {
		if err := s.self.evict(b, false); err != nil {
			t.Error(err)
		}
	}
}

// generations are the blocks that are there.
func (p *Peer) generations() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []uint64
	for g := range p.blocks {
		all = append(all, g)
	}
	return all
}

// closed tries what can not be done any more.
func (s *suite) closed(t *testing.T) {
	_, err := s.Fabric.Call(s.context(t, patience), s.ranks[0], message(1))
	wantErr(t, "a call after Close", err, fabric.ErrClosed)
	err = s.Fabric.Read(s.context(t, patience), s.ranks[0], fabric.Source{}, nil)
	wantErr(t, "a read after Close", err, fabric.ErrClosed)
	wantErr(t, "Serve after Close", s.Fabric.Serve(s.self), fabric.ErrClosed)
	if err := s.Fabric.Close(); err != nil && !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("a second Close: %v", err)
	}
	s.Fabric.SetPeer(s.Peers[0])
}

// readOn reads src again and again until it can not.
func (s *suite) readOn(t *testing.T, r Remote, src fabric.Source, g *target) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if err := s.Fabric.Read(ctx, r.Rank, src, g.dst); err != nil {
			return errors.Join(err, Settled(ctx, err))
		}
		if err := Check(g.dst, 11, 0); err != nil {
			return err
		}
	}
}

// callOn calls again and again until it can not.
func (s *suite) callOn(t *testing.T, r Remote) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if _, err := s.Fabric.Call(ctx, r.Rank, message(1000)); err != nil {
			return err
		}
	}
}
