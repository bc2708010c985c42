package cascade

import (
	"cascadekv/cascade/residency"
)

// Touched makes the chain that another rank used as young as one used here.
func (l Local) Touched(ns string, keys []string) {
	s := l.Store
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	for _, k := range keys {
		if n := residency.VisibleLocked(s.state, ns, k); n != nil {
			s.state.Requests.AddLocked(residency.BlockOf(n))
		}
	}
	s.state.Requests.PassLocked(true)
}
