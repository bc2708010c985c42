package admission

import (
	"container/list"
	"sync"
)

const (
	// strangerShare is the part of all connections that those which have not
	// authenticated may be together, and sourceShare what those of one address
	// or user id may be; leastStrangers and leastOfSource are the least of these.
	strangerShare  = 4
	sourceShare    = 16
	leastStrangers = 16
	leastOfSource  = 8
)

// Unauthenticated are the connections that have not authenticated, oldest first.
// C identifies a connection. The zero value has none; it is safe for concurrent
// use.
type Unauthenticated[C comparable] struct {
	mu struct {
		sync.Mutex
		all    list.List // of *waiter[C]
		at     map[C]*list.Element
		from   map[string]int // how many, by source
		ending map[C]struct{} // removed by Add, and not gone yet
	}
}

// waiter is a connection and where it comes from.
type waiter[C comparable] struct {
	conn   C
	source string
}

// Add counts a connection in, of a source (see Source). While there are too many,
// of its source or together, for a server of most connections (0: no bound), it
// removes the oldest and returns them, for the caller to end.
func (u *Unauthenticated[C]) Add(c C, source string, most int) (end []C) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.at == nil {
		u.mu.at, u.mu.from, u.mu.ending = map[C]*list.Element{}, map[string]int{}, map[C]struct{}{}
	}
	if u.mu.at[c] != nil {
		return nil
	}
	if most > 0 {
		each, together := max(most/sourceShare, leastOfSource), max(most/strangerShare, leastStrangers)
		for u.mu.from[source] >= each {
			end = append(end, u.endOldestLocked(func(w *waiter[C]) bool { return w.source == source }))
		}
		for u.mu.all.Len() >= together {
			end = append(end, u.endOldestLocked(func(*waiter[C]) bool { return true }))
		}
	}
	u.mu.at[c] = u.mu.all.PushBack(&waiter[C]{c, source})
	u.mu.from[source]++
	return end
}

// endOldestLocked removes the oldest connection that fits. There is one.
func (u *Unauthenticated[C]) endOldestLocked(fits func(*waiter[C]) bool) C {
	for e := u.mu.all.Front(); ; e = e.Next() {
		if w := e.Value.(*waiter[C]); fits(w) {
			u.removeLocked(w.conn)
			u.mu.ending[w.conn] = struct{}{}
			return w.conn
		}
	}
}

// Remove counts a connection out, if it is in.
func (u *Unauthenticated[C]) Remove(c C) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(c)
	delete(u.mu.ending, c)
}

func (u *Unauthenticated[C]) removeLocked(c C) {
	e := u.mu.at[c]
	if e == nil {
		return
	}
	delete(u.mu.at, c)
	source := u.mu.all.Remove(e).(*waiter[C]).source
	if u.mu.from[source]--; u.mu.from[source] == 0 {
		delete(u.mu.from, source)
	}
}

// Ending returns how many connections end because Add removed them, of a server of
// most connections: no more than may be unauthenticated.
func (u *Unauthenticated[C]) Ending(most int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return min(len(u.mu.ending), most/strangerShare)
}

// Len returns how many there are.
func (u *Unauthenticated[C]) Len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.all.Len()
}
