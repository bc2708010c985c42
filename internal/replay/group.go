package replay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"cascadekv/internal/resp"
)

// GroupTarget replays against several ranks that are one cache: each request
// goes to the next of them, as a router without memory would do it.
type GroupTarget struct {
	ranks []Target
	o     GroupOptions
	next  atomic.Uint64
	lost  atomic.Int64
}

// GroupOptions say how a GroupTarget takes failures.
type GroupOptions struct {
	// Survive lets a rank that fails be passed over until it is back: what it
	// was asked for counts as missing. Without it the first failure ends the
	// replay, as it does when no rank is left.
	Survive bool
}

// retryRank is how long a rank that failed is left alone.
const retryRank = time.Second

// NewGroupTarget returns a Target on ranks, at least one.
func NewGroupTarget(o GroupOptions, ranks ...Target) *GroupTarget {
	return &GroupTarget{ranks: ranks, o: o}
}

// Session implements Target.
func (g *GroupTarget) Session(ctx context.Context) (Session, error) {
	s := &groupSession{g: g, seats: make([]seat, len(g.ranks))}
	up := 0
	var failed error
	for i, t := range g.ranks {
		one, err := t.Session(ctx)
		switch {
		case err == nil:
			s.seats[i].session = one
			up++
		case !g.o.Survive || errors.Is(err, resp.ErrForeignServer): // who serves it is no failure that passes
			return nil, errors.Join(err, s.Close())
		default:
			failed = errors.Join(failed, err)
			s.seats[i].retry = time.Now().Add(retryRank)
		}
	}
	if up == 0 {
		return nil, failed
	}
	return s, nil
}

// Stats implements Target: sums over the ranks that answer.
func (g *GroupTarget) Stats(ctx context.Context) (TargetStats, error) {
	sum := TargetStats{LostRequests: g.lost.Load()}
	for _, t := range g.ranks {
		st, err := t.Stats(ctx)
		if err != nil && g.o.Survive {
			continue
		} else if err != nil {
			return TargetStats{}, err
		}
		sum.Policy = st.Policy
		sum.CapacityBytes += st.CapacityBytes
		sum.BytesReferenced += st.OwnReferenced
		sum.BytesStored += st.OwnStored
		for _, name := range st.Tiers {
			if !slices.Contains(sum.Tiers, name) {
				sum.Tiers = append(sum.Tiers, name)
			}
		}
	}
	return sum, nil
}

// Close implements Target.
func (g *GroupTarget) Close(ctx context.Context) error {
	var err error
	for _, t := range g.ranks {
		err = errors.Join(err, t.Close(ctx))
	}
	return err
}

// groupSession has a session with every rank that answers. A request begins
// with its probe.
type groupSession struct {
	g     *GroupTarget
	seats []seat
	at    *seat // of the request under way; its session is nil once it failed
}

// seat is one rank's place in a group session.
type seat struct {
	session Session
	retry   time.Time // not before
}

// Probe implements Session.
func (s *groupSession) Probe(ctx context.Context, keys []string) (int, error) {
	var failed error
	for range s.seats {
		i := int((s.g.next.Add(1) - 1) % uint64(len(s.seats)))
		s.at = &s.seats[i]
		if err := s.reopen(ctx, i); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		hits, err := s.at.session.Probe(ctx, keys)
		if err == nil || !s.g.o.Survive || ctx.Err() != nil {
			return hits, err
		}
		s.drop()
		failed = errors.Join(failed, err)
	}
	return 0, failed
}

var errRankLeftAlone = errors.New("replay: a rank failed and is left alone for a while")

// reopen gives a rank that failed another chance when its time has come.
func (s *groupSession) reopen(ctx context.Context, i int) error {
	at := &s.seats[i]
	if at.session != nil {
		return nil
	}
	if time.Now().Before(at.retry) {
		return errRankLeftAlone
	}
	one, err := s.g.ranks[i].Session(ctx)
	if err != nil {
		at.retry = time.Now().Add(retryRank)
		return err
	}
	at.session = one
	return nil
}

// drop gives up a rank that failed in the middle of a request.
func (s *groupSession) drop() {
	_ = s.at.session.Close() // it failed already
	s.at.session, s.at.retry = nil, time.Now().Add(retryRank)
	s.g.lost.Add(1)
}

// GetBatch implements Session.
func (s *groupSession) GetBatch(ctx context.Context, keys []string, visit func(int, []byte, string)) (int, error) {
	n, err := s.at.session.GetBatch(ctx, keys, visit)
	return n, s.survived(ctx, err)
}

// survived drops the rank of the request if it failed, where others go on.
func (s *groupSession) survived(ctx context.Context, err error) error {
	if err == nil || !s.g.o.Survive || ctx.Err() != nil {
		return err
	}
	s.drop()
	return nil
}

// PutBatch implements Session.
func (s *groupSession) PutBatch(ctx context.Context, keys []string, first int, fill func(int, []byte)) (int, error) {
	if s.at.session == nil { // the get failed
		return 0, nil
	}
	n, err := s.at.session.PutBatch(ctx, keys, first, fill)
	return n, s.survived(ctx, err)
}

// Close implements Session.
func (s *groupSession) Close() error {
	var err error
	for _, at := range s.seats {
		if at.session != nil {
			err = errors.Join(err, at.session.Close())
		}
	}
	return err
}
