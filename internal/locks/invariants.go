//go:build invariants

package locks

import (
	"fmt"
	"slices"
	"sync"
)

// Mutex is a sync.Mutex with a rank.
type Mutex struct {
	mu   sync.Mutex
	rank Rank
}

// SetRank gives m its rank, before it is used.
func (m *Mutex) SetRank(r Rank) { m.rank = r }

// Lock locks m. It panics where the order of locks does not allow that.
func (m *Mutex) Lock() {
	before(m, m.rank)
	m.mu.Lock()
	taken(m, m.rank)
}

// Unlock unlocks m. It panics if the goroutine does not hold m.
func (m *Mutex) Unlock() {
	given(m, m.rank)
	m.mu.Unlock()
}

// AssertHeld panics if the goroutine does not hold m.
func (m *Mutex) AssertHeld() {
	if index(mine(), m) < 0 {
		panic(fmt.Sprintf("locks: %v is not held", m.rank))
	}
}

// RWMutex is a sync.RWMutex with a rank. A goroutine that has it for reading may not
// lock it again.
type RWMutex struct {
	mu   sync.RWMutex
	rank Rank
}

// SetRank gives m its rank, before it is used.
func (m *RWMutex) SetRank(r Rank) { m.rank = r }

// Lock locks m for writing. It panics where the order of locks does not allow that.
func (m *RWMutex) Lock() {
	before(m, m.rank)
	m.mu.Lock()
	taken(m, m.rank)
}

// Unlock undoes Lock. It panics if the goroutine does not hold m.
func (m *RWMutex) Unlock() {
	given(m, m.rank)
	m.mu.Unlock()
}

// RLock locks m for reading, likewise.
func (m *RWMutex) RLock() {
	before(m, m.rank)
	m.mu.RLock()
	taken(m, m.rank)
}

// RUnlock undoes RLock, likewise.
func (m *RWMutex) RUnlock() {
	given(m, m.rank)
	m.mu.RUnlock()
}

// AssertBefore panics if the goroutine holds a lock of the rank or of a higher one.
func AssertBefore(r Rank) { before(nil, r) }

// held is one lock that a goroutine holds.
type held struct {
	lock any
	rank Rank
}

// all has the locks of each goroutine that holds some. Only the goroutine itself
// reads and writes its own.
var all sync.Map

func mine() []held {
	if list, ok := all.Load(goroutine()); ok {
		return list.([]held)
	}
	return nil
}

func index(list []held, lock any) int {
	return slices.IndexFunc(list, func(h held) bool { return h.lock == lock })
}

func before(lock any, r Rank) {
	for _, h := range mine() {
		if h.lock == lock {
			panic(fmt.Sprintf("locks: %v is held already", r))
		}
		if r > 0 && h.rank >= r {
			panic(fmt.Sprintf("locks: %v is taken while %v is held: the order is the other way round", r, h.rank))
		}
	}
}

func taken(lock any, r Rank) { all.Store(goroutine(), append(mine(), held{lock, r})) }

func given(lock any, r Rank) {
	list := mine()
	i := index(list, lock)
	if i < 0 {
		panic(fmt.Sprintf("locks: %v is not held by the goroutine that gives it back", r))
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		all.Delete(goroutine())
	} else {
		all.Store(goroutine(), list)
	}
}

// goroutine identifies the calling goroutine among all that run: by its address in
// the runtime. runtime.Stack has its number too, and takes some 10 µs.
func goroutine() uintptr
