package segment

import (
	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
)

// SetLayout implements tiers.Tier.
func (s *Store) SetLayout(ns string, seq uint64, l block.Layout) error {
	r := format.Record{Name: block.Name{Namespace: ns, Seq: seq}, Layout: &l}
	if err := l.Check(); err != nil {
		return err
	}
	if !s.layouts.Note(r) {
		return nil
	}
	return s.enqueue(r, false)
}

// Observe takes in the layout that a segment has which this store has not read.
func (s *Store) Observe(ns string, seq uint64, l block.Layout) {
	s.layouts.Note(format.Record{Name: block.Name{Namespace: ns, Seq: seq}, Layout: &l})
}

// Layout implements tiers.Tier.
func (s *Store) Layout(ns string) (seq uint64, l block.Layout) {
	if r, ok := s.layouts.Newest(ns); ok {
		seq, l = r.Name.Seq, *r.Layout
	}
	return seq, l
}
