package replay

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/cascade"
)

// StoreTarget replays against a store in this process.
type StoreTarget struct {
	store *cascade.Store
	o     StoreOptions
}

// StoreOptions configure a StoreTarget.
type StoreOptions struct {
	BlockBytes int    // size of every block; required
	Namespace  string // default: that of Namespace

	// CapacityBytes is what the results report as the room for blocks; default:
	// the capacities of the store's tiers, which may exceed what its policy uses.
	CapacityBytes int64

	// Close is called by the target's Close; nil leaves the store open. Whoever
	// opened the store decides whether its end is to drain it.
	Close func(context.Context) error
}

// NewStoreTarget returns a Target on s.
func NewStoreTarget(s *cascade.Store, o StoreOptions) *StoreTarget {
	if o.Namespace == "" {
		o.Namespace = Namespace(o.BlockBytes)
	}
	return &StoreTarget{store: s, o: o}
}

// Namespace is where replays with blocks of that size keep their names unless
// set otherwise. Replays that share it find each other's blocks.
func Namespace(blockBytes int) string { return fmt.Sprintf("trace/%d", blockBytes) }

// Session implements Target.
func (t *StoreTarget) Session(context.Context) (Session, error) {
	room, err := newScratch(t.o.BlockBytes, maxScratch)
	if err != nil {
		return nil, err
	}
	return &storeSession{t: t, room: room}, nil
}

// Stats implements Target.
func (t *StoreTarget) Stats(context.Context) (TargetStats, error) {
	st := targetStats(t.store.Stats())
	if t.o.CapacityBytes > 0 {
		st.CapacityBytes = t.o.CapacityBytes
	}
	return st, nil
}

// Close implements Target.
func (t *StoreTarget) Close(ctx context.Context) error {
	if t.o.Close == nil {
		return nil
	}
	return t.o.Close(ctx)
}

func targetStats(s cascade.Stats) TargetStats {
	st := TargetStats{BytesReferenced: s.BytesReferenced, BytesStored: s.BytesStored, OwnReferenced: s.OwnReferenced, OwnStored: s.OwnStored}
	for i, t := range s.Tiers {
		if i == 0 {
			st.Policy = t.Policy
		}
		st.Tiers = append(st.Tiers, t.Name)
		st.CapacityBytes += t.Usage.Capacity
	}
	return st
}

type storeSession struct {
	t     *StoreTarget
	room  *scratch
	items []cascade.PutItem
}

// Probe implements Session.
func (s *storeSession) Probe(ctx context.Context, keys []string) (int, error) {
	return s.t.store.Probe(ctx, s.t.o.Namespace, keys).Hits, nil
}

// GetBatch implements Session.
func (s *storeSession) GetBatch(ctx context.Context, keys []string, visit func(int, []byte, string)) (int, error) {
	views, err := s.t.store.GetBatch(ctx, s.t.o.Namespace, keys)
	served, hole := 0, false
	for i, v := range views {
		if v == nil {
			hole = true
			continue
		}
		if !hole && err == nil {
			visit(i, v.Bytes(), v.Tier())
			served++
		}
		v.Release()
	}
	if err != nil && !errors.Is(err, cascade.ErrMiss) {
		return served, fmt.Errorf("replay: get of %d blocks: %w", len(keys), err)
	}
	return served, nil
}

// PutBatch implements Session.
func (s *storeSession) PutBatch(ctx context.Context, keys []string, first int, fill func(int, []byte)) (int, error) {
	stored := 0
	for at := first; at < len(keys); {
		n := min(len(keys)-at, s.room.blocks())
		s.items = s.items[:0]
		for j := range n {
			e := cascade.Entry{Namespace: s.t.o.Namespace, Key: keys[at+j]}
			if at+j > 0 {
				e.Parent = keys[at+j-1]
			}
			data := s.room.block(j)
			fill(at+j, data)
			s.items = append(s.items, cascade.PutItem{Entry: e, Data: data})
		}
		done, err := s.t.store.PutBatch(ctx, s.items)
		stored += len(done)
		if errors.Is(err, cascade.ErrNoRoom) {
			return stored, nil
		}
		if err != nil {
			return stored, fmt.Errorf("replay: put of %d blocks: %w", n, err)
		}
		at += n
	}
	return stored, nil
}

// Close implements Session.
func (s *storeSession) Close() error { return s.room.close() }
