package peers

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"cascadekv/dht/fabric"
	"cascadekv/dht/members"
)

// TestTogetherIsLeftBehind checks that a rank that waits for others in MPI can
// be stopped.
func TestTogetherIsLeftBehind(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	never := make(chan struct{})
	_, err := together(ctx, slog.New(slog.DiscardHandler), func() (int, error) {
		cancel()
		<-never
		return 0, nil
	})
	if !errors.Is(err, errNotTogether) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want errNotTogether for %v", err, context.Canceled)
	}
	close(never)
	got, err := together(t.Context(), slog.New(slog.DiscardHandler), func() (int, error) { return 7, nil })
	if got != 7 || err != nil {
		t.Errorf("got %d, %v; want what the call gave", got, err)
	}
}

// TestEndsInWorld: MPI_Finalize waits for ranks of the world, so that of them must be known who
// has ended: also one whose number another process has taken before its death was noticed.
func TestEndsInWorld(t *testing.T) {
	const incarnation = 7
	p := &Peers{worldSize: 4}
	p.self.Incarnation = incarnation
	for name, c := range map[string]struct {
		kind        members.Kind
		rank        fabric.Rank
		incarnation uint64
		ending      bool
		want        bool
	}{
		"joins":                      {members.Joined, 2, incarnation, false, false},
		"dies":                       {members.Died, 2, incarnation, false, true},
		"dies, at the end":           {members.Died, 2, incarnation, true, true},
		"leaves":                     {members.Left, 2, incarnation, false, true},
		"leaves, at the end":         {members.Left, 2, incarnation, true, false},
		"its number is taken":        {members.Replaced, 2, incarnation + 1, false, true},
		"it was there before":        {members.Joined, 2, incarnation - 1, false, false},
		"it had died before":         {members.Died, 2, incarnation - 1, false, false},
		"a guest joins":              {members.Joined, 4, incarnation + 1, false, false},
		"a guest dies":               {members.Died, 4, incarnation + 1, false, false},
		"a guest dies, as old as we": {members.Died, 4, incarnation, false, false},
	} {
		p.ending.Store(c.ending)
		e := members.Event{Kind: c.kind, Member: members.Member{Rank: c.rank, Incarnation: c.incarnation}}
		if got := p.endsInWorld(e); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if alone := (&Peers{}); alone.endsInWorld(members.Event{Kind: members.Died, Member: members.Member{Rank: 0, Incarnation: incarnation}}) {
		t.Error("a rank of no world ends in it")
	}
}

// TestStart: a rank does not wait for ranks that were dead when the program before it ended.
func TestStart(t *testing.T) {
	for _, c := range []struct {
		ranks   int
		reached []string
		want    int
	}{
		{0, nil, 0}, {3, nil, 3}, {0, []string{"a:1", "b:1"}, 0}, {4, []string{"a:1", "b:1"}, 3}, {2, []string{"a:1", "b:1"}, 2},
	} {
		p := &Peers{o: Options{Seeds: c.reached}}
		p.o.Config.Peers.Ranks = c.ranks
		if got := p.start(); got != c.want {
			t.Errorf("%d ranks, %v reached before: %d, want %d", c.ranks, c.reached, got, c.want)
		}
	}
}
