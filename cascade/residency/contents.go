package residency

import (
	"cascadekv/cascade/names"
	"cascadekv/dht/directory"
)

// VisibleLocked returns a visible name, or nil; in directory.Contents, whose keys are
// ids, a visible name of that block, whatever its namespace. It is for those who read:
// who changes a name has to call it by its own key.
func VisibleLocked(s *State, ns, key string) *names.Name {
	if ns != directory.Contents {
		return s.LookupLocked(ns, key)
	}
	s.Mu.AssertHeld()
	id, ok := directory.ContentID(key)
	b := s.Mu.Blocks[id]
	if !ok || b == nil {
		return nil
	}
	for _, n := range b.Names() {
		if n.Visible(s.Now) {
			return n
		}
	}
	return nil
}
