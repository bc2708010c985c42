package residency

import (
	"cascadekv/cascade/inference"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// Asked takes in keys that were asked for together, in order: from that it infers chains
// in namespaces where nobody names parents. The keys are only read.
func Asked[K inference.Text](s *State, ns string, keys []K) {
	if len(keys) > 1 && !namesParents(s, ns) && inference.Asked(&s.Requests.orders, ns, keys) {
		inferStored(s, ns, keys)
	}
}

// Put is Asked for keys that are put together, before or after.
func Put(s *State, ns string, keys []string) {
	if len(keys) > 1 && !namesParents(s, ns) && inference.Put(&s.Requests.orders, ns, keys) {
		inferStored(s, ns, keys)
	}
}

func namesParents(s *State, ns string) bool {
	if ns == directory.Contents { // whose keys have none to infer
		return true
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	sp := s.Mu.Names.Space(ns)
	return sp != nil && sp.NamesParents
}

// inferStored gives those of some keys that are stored and have no parent what is
// inferred for them.
func inferStored[K inference.Text](s *State, ns string, keys []K) {
	for len(keys) > 0 {
		n := min(len(keys), LookStep)
		inferSome(s, ns, keys[:n])
		keys = keys[n:]
	}
}

func inferSome[K inference.Text](s *State, ns string, keys []K) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	sp := s.Mu.Names.Space(ns)
	if sp == nil {
		return
	}
	for _, k := range keys {
		n := sp.Get(string(k))
		if n == nil || n.Block() == nil || n.ParentKey() != "" {
			continue
		}
		if parent := s.Requests.orders.Parent(ns, n.Key()); parent != "" && s.Mu.Names.Infer(n, parent) {
			sp.Inferred++
			s.ApplyLocked()
			s.UpdatePoliciesLocked(BlockOf(n))
		}
	}
}

// inferLocked gives a name that is put without a parent the one that is inferred for
// it, or that it had.
func inferLocked(s *State, r *block.Name) {
	sp := s.Mu.Names.Space(r.Namespace)
	if r.Parent != "" || sp == nil || sp.NamesParents {
		return
	}
	parent := s.Requests.orders.Parent(r.Namespace, r.Key)
	if n := sp.Get(r.Key); parent == "" && n != nil && n.Block() != nil && n.Inferred() {
		parent = n.ParentKey()
	}
	if parent != "" {
		r.Parent, r.Inferred = parent, true
		sp.Inferred++
	}
}
