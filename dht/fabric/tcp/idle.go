package tcp

import (
	"container/list"
	"slices"
	"sync"
)

// idleWires are the payload streams to all peers that nobody reads from, in the order in
// which that began. There are at most so many: a rank of a large job reads from most of the
// others at some time, and would keep Streams descriptors for each, here and there.
// Its mutex is taken with that of a life held.
type idleWires struct {
	most int

	mu  sync.Mutex
	all list.List // of *wire
}

// add notes that w is idle, and returns one that is to be closed for it, nil for none.
func (i *idleWires) add(w *wire) (oldest *wire) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.rest = i.all.PushBack(w)
	if i.all.Len() > i.most {
		oldest = i.all.Front().Value.(*wire)
		i.removeLocked(oldest)
	}
	return oldest
}

// remove notes that w is not idle any more.
func (i *idleWires) remove(w *wire) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.removeLocked(w)
}

func (i *idleWires) removeLocked(w *wire) {
	if w.rest != nil {
		i.all.Remove(w.rest)
		w.rest = nil
	}
}

// retire closes a stream if it is idle still.
func (l *life) retire(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.Index(l.idle, w); at >= 0 {
		l.idle = slices.Delete(l.idle, at, at+1)
		delete(l.wires, w)
		w.close()
	}
}
