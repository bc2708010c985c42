package load

import (
	"cascadekv/cascade/residency"
)

// PinDeep pins those blocks of a chain, head first, that only the deep level has, for whoever reads them from there by other
// means. For the policies they are asked for, as by a get; the caller counts them once it knows what was read. All other views are
// nil: a get brings what is there. The views have no Bytes.
func PinDeep(ld *Loader, ns string, keys []string) []*residency.View {
	s := ld.state
	views := make([]*residency.View, len(keys))
	s.Mu.Lock()
	defer s.Mu.Unlock()
	d := s.Deep()
	if d == nil || s.CheckOpenLocked() != nil || d.NoReads.Lasts() {
		return views
	}
	left := s.Requests.BeginLocked()
	for i, key := range keys {
		n := residency.VisibleLocked(s, ns, key)
		if n == nil {
			continue
		}
		b := residency.BlockOf(n)
		if !b.In(d.Index) || s.InNear(b) || ld.guarded.fetches[source{block: b}] != nil {
			continue
		}
		if views[i] = s.PinLocked(b, d); views[i] == nil {
			continue
		}
		s.Requests.UsedLocked(b)
		if !s.Requests.LookedLocked(ns, key, &left) {
			s.Requests.AddLocked(b)
		}
	}
	s.Requests.PassLocked(true)
	return views
}
