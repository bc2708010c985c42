package sim

import (
	"fmt"
	"sync"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// local is the model of one rank's store: which of its names it still has. It
// implements dht.Local.
type local struct {
	rank  fabric.Rank
	names *names

	mu   sync.RWMutex
	mine map[string]int // by key: the name's number
	gone map[string]int // withdrawn
}

func newLocal(rank fabric.Rank, s *names, mine []int) *local {
	l := &local{rank: rank, names: s, mine: make(map[string]int, len(mine)), gone: map[string]int{}}
	for _, i := range mine {
		l.mine[s.keys[i]] = i
	}
	return l
}

// Hold implements dht.Local.
func (l *local) Hold(src fabric.Source) (fabric.Hold, error) {
	stale := func() error {
		return fmt.Errorf("%w: %v has no block at %d of generation %d", fabric.ErrStale, l.rank, src.Offset, src.Generation)
	}
	i := int(src.Offset / blockBytes)
	if src.Offset < 0 || i >= len(l.names.keys) || src.Length < 0 || src.Offset+src.Length > int64(i+1)*blockBytes {
		return nil, stale()
	}
	l.mu.RLock()
	_, held := l.mine[l.names.keys[i]]
	l.mu.RUnlock()
	if !held || src.Region != 0 || src.Generation != generation(i) {
		return nil, stale()
	}
	return hold(l.names.slab[src.Offset:][:src.Length]), nil
}

// hold is a part of a block. Blocks of the simulation never move.
type hold []byte

// Bytes implements fabric.Hold.
func (h hold) Bytes() []byte { return h }

// Release implements fabric.Hold.
func (hold) Release() {}

// State implements dht.Local.
func (l *local) State(ns, key string) directory.Statement {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if i, held := l.mine[key]; held && ns == namespace {
		return l.names.statement(i, true)
	}
	if i, known := l.gone[key]; known && ns == namespace {
		return l.names.statement(i, false)
	}
	var s directory.Statement
	s.Name.Namespace, s.Name.Key = ns, key
	return s
}

// Names implements dht.Local.
func (l *local) Names(want func(ns, key string) bool, fn func(directory.Statement)) {
	var all []int
	l.mu.RLock()
	for key, i := range l.mine {
		if want(namespace, key) {
			all = append(all, i)
		}
	}
	l.mu.RUnlock()
	for _, i := range all {
		fn(l.names.statement(i, true))
	}
}

// all returns statements about everything this rank has.
func (l *local) all() (list []directory.Statement) {
	l.Names(func(string, string) bool { return true }, func(s directory.Statement) { list = append(list, s) })
	return list
}

// Outdated implements dht.Local.
func (l *local) Outdated(ns, key string, before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, held := l.mine[key]; held && ns == namespace && uint64(i)+1 < before {
		l.withdraw(key, i)
	}
}

func (l *local) withdraw(key string, i int) {
	delete(l.mine, key)
	l.gone[key] = i
}

// Touched implements dht.Local. The model evicts nothing.
func (l *local) Touched(string, []string) {}

// Cleared implements dht.Local.
func (l *local) Cleared(ns string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !all && ns != namespace {
		return
	}
	for key, i := range l.mine {
		l.withdraw(key, i)
	}
}

// Status implements dht.Local.
func (l *local) Status() []byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return fmt.Appendf(nil, `{"names":%d}`, len(l.mine))
}
