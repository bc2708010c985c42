package load

import (
	"slices"

	"cascadekv/internal/fault"
)

// Blocks of probed chains that only the catalogue has are found, and their fetches made,
// behind the answer to the probe, by one goroutine for all chains, and some at a time: to
// make the fetches of a chain takes longer than to find out how much of it is there.
const (
	// maxLookups bounds what waits for that. Where more does, the chain that was probed
	// first is not prefetched: its gets have come by now, or will find it by themselves.
	maxLookups = 64

	// lookupStep is how many fetches are made at a time: requests wait for these.
	lookupStep = 32
)

// lookups are the blocks that wait. Guarded by State.Mu.
type lookups struct {
	ld    *Loader
	queue []lookup // the oldest first
	runs  bool     // a worker works it off
}

// lookup is blocks of a chain, by their places in it.
type lookup struct {
	a     *Prefetch
	which []int
}

// addLocked has blocks found and fetched soon.
func (l *lookups) addLocked(one lookup) {
	if len(l.queue) == maxLookups {
		l.queue = slices.Delete(l.queue, 0, 1)
	}
	l.queue = append(l.queue, one)
	if !l.runs {
		l.runs = true
		l.ld.state.Workers.Go(l.work)
	}
}

// work works off what is queued, until nothing is or the store is closed.
func (l *lookups) work() {
	defer fault.Guard()()
	for {
		one, ok := l.next()
		if !ok {
			return
		}
		l.fetch(one)
	}
}

func (l *lookups) next() (one lookup, ok bool) {
	l.ld.state.Mu.Lock()
	defer l.ld.state.Mu.Unlock()
	if len(l.queue) == 0 || l.ld.state.Mu.Closed {
		l.queue, l.runs = nil, false
		return one, false
	}
	one = l.queue[0]
	l.queue = slices.Delete(l.queue, 0, 1)
	return one, true
}

// fetch finds blocks and starts to fetch them, all together. In place of those that are not
// there any more, or need no fetch, others of the chain are fetched.
func (l *lookups) fetch(one lookup) {
	fresh := make([]*Fetch, 0, len(one.which))
	for some := range slices.Chunk(one.which, lookupStep) {
		if !l.find(one.a, some, &fresh) {
			break
		}
	}
	l.ld.state.Mu.Lock()
	defer l.ld.state.Mu.Unlock()
	l.ld.StartLocked(fresh)
	l.ld.advanceLocked(one.a, len(one.which)-len(fresh))
}

// find finds some blocks, and adds their fetches to fresh. It is false when nothing more may
// be prefetched.
func (l *lookups) find(a *Prefetch, which []int, fresh *[]*Fetch) bool {
	keys := make([]string, len(which))
	for j, i := range which {
		keys[j] = a.keys[i]
	}
	found := l.ld.others.CataloguedUnasked(a.ns, keys)
	l.ld.state.Mu.Lock()
	defer l.ld.state.Mu.Unlock()
	for j, copies := range found {
		if l.ld.prefetchEndsLocked() {
			return false
		}
		if copies != nil {
			l.ld.prefetchLocked(a, which[j], copies, fresh)
		}
	}
	return true
}
