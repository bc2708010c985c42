package format

import "sync"

// Layouts is the newest LAYOUT of each namespace that is known, of all segments.
type Layouts struct {
	mu struct {
		sync.Mutex
		newest map[string]Record
	}
}

// Note takes in a LAYOUT, and reports whether it is the newest of its namespace.
func (l *Layouts) Note(r Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, ok := l.mu.newest[r.Name.Namespace]
	if ok && old.Name.Seq >= r.Name.Seq {
		return false
	}
	if l.mu.newest == nil {
		l.mu.newest = map[string]Record{}
	}
	l.mu.newest[r.Name.Namespace] = r
	return true
}

// Missing returns the newest layouts of the namespaces of a frame that a segment, which
// has those in written, does not have, and adds them there.
func (l *Layouts) Missing(written map[string]uint64, items []Block, recs []Record) (more []Record) {
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

// Newest returns the newest LAYOUT of a namespace, if there is one.
func (l *Layouts) Newest(ns string) (Record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.mu.newest[ns]
	return r, ok
}
