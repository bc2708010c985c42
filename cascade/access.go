package cascade

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
)

// access is one request as the policies see it: its blocks in the order of each
// tier, head of the chain first. Guarded by the store's mutex.
type access struct {
	chains  [maxMemory][]policy.Ref
	cold    []policy.Ref
	request policy.Request // of pass, so that none is made for each call
}

// addAccessLocked adds b to the request that accessLocked ends.
func (s *Store) addAccessLocked(b *blockState) {
	a, fingerprint := &s.mu.access, s.fingerprintLocked(b)
	for t := range s.mem {
		node := policy.NoNode
		if b.In(t) {
			node = b.at[t].node
		}
		a.chains[t] = append(a.chains[t], policy.Ref{Fingerprint: fingerprint, Size: b.Info.Size, Node: node})
	}
	if s.mu.room.policy != nil {
		node := policy.NoNode
		if b.below.ranked {
			node = b.below.node
		}
		a.cold = append(a.cold, policy.Ref{Fingerprint: fingerprint, Size: b.Info.Size, Node: node})
	}
}

// addMissLocked adds a block that this rank does not have to the request.
func (s *Store) addMissLocked(ns, key string) {
	a, ref := &s.mu.access, policy.Ref{Fingerprint: fingerprint(ns, key), Node: policy.NoNode}
	for t := range s.mem {
		a.chains[t] = append(a.chains[t], ref)
	}
	if s.mu.room.policy != nil {
		a.cold = append(a.cold, ref)
	}
}

// accessLocked passes the request to the policies: asked reports whether its blocks
// were asked for, and not stored.
func (s *Store) accessLocked(asked bool) {
	a, now := &s.mu.access, s.age()
	for t, chain := range a.chains {
		if len(chain) > 0 {
			a.pass(s.mem[t].policy, now, chain, asked)
			a.chains[t] = chain[:0]
		}
	}
	if len(a.cold) > 0 {
		a.pass(s.mu.room.policy, now, a.cold, asked)
		a.cold = a.cold[:0]
	}
}

func (a *access) pass(p policy.Policy, now time.Duration, chain []policy.Ref, asked bool) {
	a.request = policy.Request{Now: now, Chain: chain}
	if asked {
		a.request.Hits = len(chain)
	}
	p.Access(&a.request)
}

// fingerprint identifies a block for the policies by a name of it: its id is not
// known before it is hashed, nor that of a block that is missing.
func fingerprint(ns, key string) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(ns)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(key)
	return d.Sum64()
}

// fingerprintLocked is that of the first name that b has had here.
func (s *Store) fingerprintLocked(b *blockState) uint64 {
	if all := b.Names(); b.fingerprint == 0 && len(all) > 0 {
		b.fingerprint = fingerprint(all[0].Namespace(), all[0].Key())
	}
	return b.fingerprint
}

// accessed is refreshLocked for a put.
func (s *Store) accessed(stored ...*names.Name) {
	if len(stored) == 0 || stored[0] == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshLocked(stored)
}

// refreshLocked passes the policies a request that stored a chain, or a piece of
// one, head first. What comes before the piece is not touched, or each put would
// cost as much as its chain is long: those blocks can not leave before the new
// ones, and are the next to leave after them.
func (s *Store) refreshLocked(stored []*names.Name) {
	for _, n := range stored {
		if n.Block() != nil {
			s.addAccessLocked(stateOf(n))
		}
	}
	s.accessLocked(false)
}

// Touched makes the chain that another rank used as young as one used here.
func (l Local) Touched(ns string, keys []string) {
	s := l.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if n := s.lookupLocked(ns, k); n != nil {
			s.addAccessLocked(stateOf(n))
		}
	}
	s.accessLocked(true)
}
