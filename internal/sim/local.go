package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// local is the model of one rank's store: which of its names it still has. It
// implements dht.Local.
type local struct {
	rank  fabric.Rank
	names *names

	mu   sync.RWMutex
	mine map[string]held
}

// held is a name that a rank has or had.
type held struct {
	i       int // the name's number
	version int // statements before the present one
	gone    bool
}

func newLocal(rank fabric.Rank, s *names, mine []int) *local {
	l := &local{rank: rank, names: s, mine: make(map[string]held, len(mine))}
	for _, i := range mine {
		l.mine[s.keys[i]] = held{i: i}
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
	h, known := l.mine[l.names.keys[i]]
	l.mu.RUnlock()
	if !known || h.gone || src.Region != 0 || src.Generation != generation(i, h.version) {
		return nil, stale()
	}
	return hold(l.names.slab[src.Offset:][:src.Length]), nil
}

// hold is a part of a block. The bytes of a block stay as they are.
type hold []byte

// Bytes implements fabric.Hold.
func (h hold) Bytes() []byte { return h }

// Release implements fabric.Hold.
func (hold) Release() {}

// State implements dht.Local.
func (l *local) State(ns, key string) directory.Statement {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if h, known := l.mine[key]; known && ns == namespace {
		return l.state(h)
	}
	var s directory.Statement
	s.Name.Namespace, s.Name.Key = ns, key
	return s
}

func (l *local) state(h held) directory.Statement { return l.names.statement(h.i, h.version, !h.gone) }

// Names implements dht.Local.
func (l *local) Names(want func(ns, key string) bool, fn func(directory.Statement)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for key, h := range l.mine {
		if !h.gone && want(namespace, key) {
			fn(l.state(h))
		}
	}
}

// all returns statements about everything this rank has.
func (l *local) all() (list []directory.Statement) {
	l.Names(func(string, string) bool { return true }, func(s directory.Statement) { list = append(list, s) })
	return list
}

// change gives a block another generation, or withdraws it, and returns the
// statement of that.
func (l *local) change(key string, gone bool) directory.Statement {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed(key, gone)
}

func (l *local) changed(key string, gone bool) directory.Statement {
	h := l.mine[key]
	h.version++
	h.gone = h.gone || gone
	l.mine[key] = h
	return l.state(h)
}

// Outdated implements dht.Local.
func (l *local) Outdated(ns, key string, before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h, known := l.mine[key]; known && ns == namespace && uint64(h.i)+1 < before {
		l.changed(key, true)
	}
}

// Expires implements dht.Local. The model's names do not end.
func (l *local) Expires(context.Context, string, string, time.Time) bool { return false }

// NamesOf implements dht.Local: the model has no ids.
func (l *local) NamesOf(block.ID) []block.Name { return nil }

// Entrust implements dht.Local. The model has no segments.
func (l *local) Entrust(_ context.Context, list []directory.Statement) (refused []int) {
	for i := range list {
		refused = append(refused, i)
	}
	return refused
}

// Touched implements dht.Local. The model evicts nothing.
func (l *local) Touched(string, []string) {}

// Cleared implements dht.Local, of all puts whatever their stamps.
func (l *local) Cleared(ns string, all bool, _ uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !all && ns != namespace {
		return
	}
	for key := range l.mine {
		l.changed(key, true)
	}
}

// Status implements dht.Local.
func (l *local) Status() []byte {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return fmt.Appendf(nil, `{"names":%d}`, len(l.mine))
}
