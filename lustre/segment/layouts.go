package segment

import (
	"sync"

	"cascadekv/internal/block"
	"cascadekv/lustre/segment/format"
)

// layouts is the newest LAYOUT of each namespace that is known, of all segments.
type layouts struct {
	mu struct {
		sync.Mutex
		newest map[string]format.Record
	}
}

// note takes in a LAYOUT, and reports whether it is the newest of its namespace.
func (l *layouts) note(r format.Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, ok := l.mu.newest[r.Name.Namespace]
	if ok && old.Name.Seq >= r.Name.Seq {
		return false
	}
	if l.mu.newest == nil {
		l.mu.newest = map[string]format.Record{}
	}
	l.mu.newest[r.Name.Namespace] = r
	return true
}

// missing returns the newest layouts of the namespaces of a frame that a segment, which
// has those in written, does not have, and adds them there.
func (l *layouts) missing(written map[string]uint64, items []format.Block, recs []format.Record) (more []format.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.newest) == 0 {
		return nil
	}
	for _, r := range recs {
		if r.Layout != nil {
			written[r.Name.Namespace] = max(written[r.Name.Namespace], r.Name.Seq)
		}
	}
	last := ""
	add := func(ns string) {
		if ns == last {
			return
		}
		last = ns
		if r, ok := l.mu.newest[ns]; ok && written[ns] < r.Name.Seq {
			written[ns] = r.Name.Seq
			more = append(more, r)
		}
	}
	for _, it := range items {
		for _, n := range it.Names {
			add(n.Namespace)
		}
	}
	for _, r := range recs {
		add(r.Name.Namespace)
	}
	return more
}

// SetLayout implements tiers.Tier.
func (s *Store) SetLayout(ns string, seq uint64, l block.Layout) error {
	r := format.Record{Name: block.Name{Namespace: ns, Seq: seq}, Layout: &l}
	if err := l.Check(); err != nil {
		return err
	}
	if !s.layouts.note(r) {
		return nil
	}
	return s.enqueue(r, false)
}

// Observe takes in the layout that a segment has which this store has not read.
func (s *Store) Observe(ns string, seq uint64, l block.Layout) {
	s.layouts.note(format.Record{Name: block.Name{Namespace: ns, Seq: seq}, Layout: &l})
}

// Layout implements tiers.Tier.
func (s *Store) Layout(ns string) (seq uint64, l block.Layout) {
	s.layouts.mu.Lock()
	defer s.layouts.mu.Unlock()
	if r, ok := s.layouts.mu.newest[ns]; ok {
		seq, l = r.Name.Seq, *r.Layout
	}
	return seq, l
}
