package residency

import (
	"fmt"

	"cascadekv/cascade/names"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
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

// CheckNamespace reports whether a namespace can have names; the error matches ErrBadEntry.
func CheckNamespace(ns string) error {
	switch {
	case len(ns) > block.MaxKey:
		return fmt.Errorf("%w: namespace has %d bytes, want at most %d", ErrBadEntry, len(ns), block.MaxKey)
	case ns == directory.Contents:
		return fmt.Errorf("%w: namespace %q is reserved: blocks are read there by their ids", ErrBadEntry, ns)
	}
	return nil
}
