package fabrictest

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/arena"
)

// Config describes the fabric under test.
type Config struct {
	// Fabric is the client's end. Run calls its Serve and, at last, its Close.
	Fabric fabric.Fabric

	// Peers are the ranks, at least one, whose fabrics serve NewPeer. Run passes
	// them to Fabric, and has them quit.
	Peers []fabric.Peer

	// Restart replaces a peer's process by a new one with a larger
	// incarnation, or pretends to, and returns what it is now. Nil leaves out
	// the test of that.
	Restart func(old fabric.Peer) fabric.Peer
}

const (
	patience = 30 * time.Second // of operations that should succeed
	maxBlock = 64 << 20
	guard    = 4 << 10 // bytes on each side of a dst that must stay as they are
	guarded  = 0xA5
)

// suite is a run: one fabric, on which the tests run one after the other.
type suite struct {
	Config
	self   *Peer
	ranks  []fabric.Rank // the peers and, last, the client
	memory *arena.Mapping
	free   int64 // where in memory the next dst goes
}

// Run runs the whole suite as subtests of t, and closes the fabric.
func Run(t *testing.T, c Config) {
	s := &suite{Config: c}
	var err error
	if s.self, err = NewPeer(); err != nil {
		t.Fatal(err)
	}
	if s.memory, err = arena.MapAnonymous(2 * maxBlock); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Peers {
		c.Fabric.SetPeer(p)
		s.ranks = append(s.ranks, p.Rank)
	}
	s.ranks = append(s.ranks, c.Fabric.Self())
	if err := c.Fabric.Serve(s.self); err != nil {
		t.Fatalf("Serve: %v", err)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"identity", s.identity},
		{"echo", s.echo},
		{"too large", s.tooLarge},
		{"remote error", s.remoteError},
		{"unknown peer", s.unknownPeer},
		{"call deadline", s.callDeadline},
		{"call cancel", s.callCancel},
		{"read sizes", s.readSizes},
		{"read part", s.readPart},
		{"read stale", s.readStale},
		{"read wrong source", s.readWrong},
		{"read wrong length", s.readWrongLength},
		{"read batch", s.readBatch},
		{"read batch deadline", s.readBatchDeadline},
		{"read deadline", s.readDeadline},
		{"evict held", s.evictHeld},
		{"evict under reads", s.evictUnderReads},
		{"concurrent", s.concurrent},
		{"peer gone", s.peerGone},
		{"peer restarted", s.peerRestarted},
		{"close", s.closing},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.free = 0
			test.run(t)
			s.clean(t)
		})
	}
	if err := errors.Join(s.memory.Close(), s.self.Close()); err != nil {
		t.Error(err)
	}
}

// clean checks that a test left no call, hold or fault behind on any rank.
func (s *suite) clean(t *testing.T) {
	for _, r := range s.remotes() {
		if t.Context().Err() == nil && r.Rank == s.Fabric.Self() {
			s.eventually(t, "calls and holds of the client's peer end", func() bool {
				st := s.self.Stats()
				return st.Running == 0 && st.Holds == 0 && st.Faults == 0 && st.Blocks == 0
			}, func() any { return s.self.Stats() })
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var st Stats
		var err error
		s.eventually(t, r.Rank.String()+"'s calls and holds end", func() bool {
			st, err = r.Stats(ctx)
			if errors.Is(err, fabric.ErrClosed) {
				return true
			}
			return err == nil && st.Running == 1 && st.Holds == 0 && st.Faults == 0 && st.Blocks == 0
		}, func() any { return []any{st, err} })
	}
}

// eventually waits for ok, up to patience.
func (s *suite) eventually(t *testing.T, what string, ok func() bool, state func() any) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s: %+v", patience, what, state())
		}
	}
}

// goroutines waits until there are no more than before.
func (s *suite) goroutines(t *testing.T, before int) {
	t.Helper()
	s.eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before },
		func() any { return runtime.NumGoroutine() - before })
}

func (s *suite) remotes() []Remote {
	var all []Remote
	for _, r := range s.ranks {
		all = append(all, Remote{s.Fabric, r})
	}
	return all
}

// two are a peer and the client: enough for what takes long.
func (s *suite) two() []Remote { return []Remote{s.far(), {s.Fabric, s.Fabric.Self()}} }

// far is a peer that is not the client.
func (s *suite) far() Remote { return Remote{s.Fabric, s.Peers[0].Rank} }

// context ends with the test or after d.
func (s *suite) context(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// put is Remote.Put that must succeed.
func (s *suite) put(t *testing.T, r Remote, length int64, seed uint64) fabric.Source {
	t.Helper()
	src, err := r.Put(s.context(t, patience), length, seed)
	if err != nil {
		t.Fatalf("put of %d bytes on %v: %v", length, r.Rank, err)
	}
	return src
}

func (s *suite) evict(t *testing.T, r Remote, src fabric.Source) {
	t.Helper()
	if err := r.Evict(s.context(t, patience), src); err != nil {
		t.Fatalf("evict on %v: %v", r.Rank, err)
	}
}

// target is mapped memory for a read, with guards on both sides.
type target struct{ whole, dst []byte }

// target returns memory that no other target of the test overlaps. Its start
// is odd, so that fabrics meet unaligned memory too.
func (s *suite) target(t *testing.T, length int64) *target {
	t.Helper()
	n := length + 2*guard + 1
	if s.free+n > int64(len(s.memory.Bytes())) {
		t.Fatalf("the test needs more than %d bytes of targets", len(s.memory.Bytes()))
	}
	w := s.memory.Bytes()[s.free : s.free+n]
	s.free += n
	g := &target{whole: w, dst: w[guard+1 : guard+1+length : guard+1+length]}
	g.reset()
	return g
}

func (g *target) reset() {
	g.whole[0] = guarded
	for n := 1; n < len(g.whole); n *= 2 {
		copy(g.whole[n:], g.whole[:n])
	}
}

// intact reports whether the guards are what they were.
func (g *target) intact() bool {
	for _, side := range [][]byte{g.whole[:guard+1], g.whole[len(g.whole)-guard:]} {
		for _, b := range side {
			if b != guarded {
				return false
			}
		}
	}
	return true
}

// read reads src into g and checks the bytes, which are those of seed from the
// offset from on, and the guards.
func (s *suite) read(t *testing.T, r Remote, src fabric.Source, g *target, seed uint64, from int64) {
	t.Helper()
	if err := s.Fabric.Read(s.context(t, patience), r.Rank, src, g.dst); err != nil {
		t.Fatalf("Read of %+v from %v: %v", src, r.Rank, err)
	}
	if err := Check(g.dst, seed, from); err != nil {
		t.Fatalf("Read of %+v from %v: %v", src, r.Rank, err)
	}
	if !g.intact() {
		t.Fatalf("Read of %+v from %v wrote outside dst", src, r.Rank)
	}
}

// wantErr checks an operation's error.
func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %q", what, err, want)
	}
}
