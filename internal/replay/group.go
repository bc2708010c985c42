package replay

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
)

// GroupTarget replays against several ranks that are one cache: each request
// goes to the next of them, as a router without memory would do it.
type GroupTarget struct {
	ranks []Target
	next  atomic.Uint64
}

// NewGroupTarget returns a Target on ranks, at least one.
func NewGroupTarget(ranks ...Target) *GroupTarget { return &GroupTarget{ranks: ranks} }

// Session implements Target.
func (g *GroupTarget) Session(ctx context.Context) (Session, error) {
	s := &groupSession{g: g}
	for _, t := range g.ranks {
		one, err := t.Session(ctx)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.sessions = append(s.sessions, one)
	}
	return s, nil
}

// Stats implements Target: sums over the ranks.
func (g *GroupTarget) Stats(ctx context.Context) (TargetStats, error) {
	var sum TargetStats
	for _, t := range g.ranks {
		st, err := t.Stats(ctx)
		if err != nil {
			return TargetStats{}, err
		}
		sum.Policy = st.Policy
		sum.CapacityBytes += st.CapacityBytes
		sum.BytesReferenced += st.BytesReferenced
		sum.BytesStored += st.BytesStored
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

// groupSession has a session with every rank. A request begins with its probe.
type groupSession struct {
	g        *GroupTarget
	sessions []Session
	at       Session // of the request under way
}

// Probe implements Session.
func (s *groupSession) Probe(ctx context.Context, keys []string) (int, error) {
	s.at = s.sessions[(s.g.next.Add(1)-1)%uint64(len(s.sessions))]
	return s.at.Probe(ctx, keys)
}

// GetBatch implements Session.
func (s *groupSession) GetBatch(ctx context.Context, keys []string, visit func(int, []byte, string)) (int, error) {
	return s.at.GetBatch(ctx, keys, visit)
}

// PutBatch implements Session.
func (s *groupSession) PutBatch(ctx context.Context, keys []string, first int, fill func(int, []byte)) (int, error) {
	return s.at.PutBatch(ctx, keys, first, fill)
}

// Close implements Session.
func (s *groupSession) Close() error {
	var err error
	for _, one := range s.sessions {
		err = errors.Join(err, one.Close())
	}
	return err
}
