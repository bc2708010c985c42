package cascade

import (
	"context"

	"cascadekv/cascade/others"
	"cascadekv/tiers"
)

// AdoptParts brings the catalogue up to date with parts of other ranks: what they
// hold is a hit from then on, here and, once published, on other ranks.
// Parts of earlier calls that are not among them are not used any more.
func (s *Store) AdoptParts(ctx context.Context, parts []tiers.Part) (tiers.Taken, error) {
	if s.others.Catalogue == nil {
		return tiers.Taken{}, others.ErrNotShared
	}
	parts = s.space.NotAdopted(parts)
	if len(parts) > 0 {
		s.state.Mu.Lock()
		s.state.Watch.CataloguedLocked()
		s.state.Mu.Unlock()
	}
	got, err := s.others.Catalogue.AdoptParts(ctx, parts, s.others.GiveWay)
	s.space.SetOrphans(parts, got.Left)
	if err == nil {
		err = s.others.JudgeWanted()
	}
	s.state.Mu.Lock()
	a := &s.state.Count.Stats.Adopted
	a.Blocks, a.Names, a.Bytes = a.Blocks+got.Blocks, a.Names+got.Names, a.Bytes+got.Bytes
	alone := s.others.Peers == nil
	s.state.Mu.Unlock()
	if err == nil && got.Fresh {
		s.space.KeepHeads(true)
		if !alone {
			err = s.others.PublishFresh(ctx)
		}
	}
	return got, err
}

// raise brings a name that only the catalogue has into memory.
func (s *Store) raise(ctx context.Context, ns, key string) bool {
	if s.others.Catalogued(ns, []string{key})[0] == nil {
		return false
	}
	v, err := s.Get(ctx, ns, key)
	if err != nil {
		return false
	}
	v.Release()
	return true
}
