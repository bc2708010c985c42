package mixed

import (
	"context"
	"errors"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/dht/fabric/tcp"
	"cascadekv/internal/testing/fabrictest"
)

// worldIncarnation is that of all ranks of the tests' worlds, worldSize their number.
const (
	worldIncarnation = 7
	worldSize        = 2
)

func overTCP(t *testing.T, rank fabric.Rank, incarnation uint64) *tcp.Fabric {
	t.Helper()
	f, err := tcp.New(tcp.Options{Self: rank, Incarnation: incarnation, Listen: "127.0.0.1:0", Job: "tests", Secret: []byte("sixteen bytes or more")})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// native is a rank of a world.
func native(t *testing.T, w *sim.World, rank fabric.Rank) *Fabric {
	t.Helper()
	return New(Options{World: w.Join(rank, worldIncarnation), Size: worldSize, Incarnation: worldIncarnation, Guests: overTCP(t, rank, worldIncarnation)})
}

// TestConformance: natives and guests, a guest that takes over a native's number among them, are
// peers as the suite wants them.
func TestConformance(t *testing.T) {
	w := sim.New(sim.Options{})
	fabrictest.Run(t, fabrictest.Config{
		Fabric: native(t, w, 0),
		Peers:  []fabric.Peer{fabrictest.Serve(t, native(t, w, 1), worldIncarnation), fabrictest.Serve(t, overTCP(t, 2, 9), 9)},
		Restart: func(old fabric.Peer) fabric.Peer {
			return fabrictest.Serve(t, overTCP(t, old.Rank, old.Incarnation+1), old.Incarnation+1)
		},
	})
}

// TestGuest: the suite of a guest, whose peers are natives.
func TestGuest(t *testing.T) {
	w := sim.New(sim.Options{})
	fabrictest.Run(t, fabrictest.Config{
		Fabric: overTCP(t, 2, 9),
		Peers:  []fabric.Peer{fabrictest.Serve(t, native(t, w, 0), worldIncarnation), fabrictest.Serve(t, native(t, w, 1), worldIncarnation)},
	})
}

type parrot struct{ word string }

func (p parrot) Answer(context.Context, fabric.Rank, []byte) ([]byte, error) {
	return []byte(p.word), nil
}
func (parrot) Hold(fabric.Source) (fabric.Hold, error) { return nil, fabric.ErrStale }

// TestWay: each incarnation is reached the way that it listens on, and old news changes nothing.
func TestWay(t *testing.T) {
	w := sim.New(sim.Options{})
	f := native(t, w, 0)
	other, guest := w.Join(1, worldIncarnation), overTCP(t, 1, worldIncarnation+5)
	for _, one := range []struct {
		f    fabric.Fabric
		word string
	}{{f, "self"}, {other, "native"}, {guest, "guest"}} {
		if err := one.f.Serve(parrot{one.word}); err != nil {
			t.Fatal(err)
		}
		defer one.f.Close()
	}
	ask := func(want string, wantErr error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		got, err := f.Call(ctx, 1, nil)
		if string(got) != want || !errors.Is(err, wantErr) {
			t.Errorf("%q, %v; want %q, %v", got, err, want, wantErr)
		}
	}
	ask("native", nil) // of whom nobody has said anything yet
	m := fabric.Peer{Rank: 1, Incarnation: worldIncarnation}
	f.SetPeer(m)
	ask("native", nil)
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: worldIncarnation - 1, Addr: guest.Addr()}) // it was there before
	ask("native", nil)
	m.State = fabric.Gone
	f.SetPeer(m)
	ask("", fabric.ErrUnreachable)
	g := fabric.Peer{Rank: 1, Incarnation: worldIncarnation + 5, Addr: guest.Addr()}
	f.SetPeer(g)
	ask("guest", nil)
	m.State = fabric.Alive
	f.SetPeer(m)
	ask("guest", nil)
	g.State = fabric.Gone
	f.SetPeer(g)
	ask("", fabric.ErrUnreachable)
}
