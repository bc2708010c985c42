package estimate

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// prefillFor is how long after a miss a put is taken for its block, computed since then: what
	// comes later waited, or was computed for another request.
	prefillFor = time.Minute

	// prefillRuns bounds the chains of a namespace that its rate is learned from, the newest; fewer
	// than leastRuns say nothing.
	prefillRuns, leastRuns = 32, 3

	// prefillKeys bounds what is remembered of one chain, and prefillWaits of all that nothing was
	// put of yet.
	prefillKeys, prefillWaits = 64, 4096

	// prefillSpaces bounds the namespaces of which anything is learned.
	prefillSpaces = 256
)

// Prefills estimates how long an engine computes a block of each namespace, from how long after a
// chain was looked for and not found its blocks are put. It is safe for concurrent use.
//
// A chain counts with its last put, divided by how many blocks were missing up to that one, so that what
// comes before and after the work weighs little for long ones. The estimate is the
// median over blocks: of chains that waited for others, or were put by another engine
// that was half-way through, there are fewer.
type Prefills struct {
	waiting atomic.Bool // whether there are waits

	mu     sync.Mutex
	waits  map[uint64]awaited
	order  []wait // of waits, oldest first; with some that are none any more
	spaces map[string]*prefill
}

// awaited is a block that was missing.
type awaited struct {
	of     *missed
	blocks int // of the chain that were missing up to this one
}

// wait is a block that was missing, by its key, of a chain.
type wait struct {
	key uint64
	of  *missed
}

// missed is a chain whose end was missing.
type missed struct {
	space  string
	at     time.Duration
	blocks int           // up to the last one that was put, 0: none was
	took   time.Duration // until then
}

func (m *missed) perBlock() time.Duration { return m.took / time.Duration(m.blocks) }

// prefill is what is known of a namespace: the newest chains with puts, oldest first.
type prefill struct{ runs []*missed }

// Missed notes that the end of a chain was looked for in a namespace and is not there: the
// fingerprints of its keys, in order. A chain that is looked for anew, and of which nothing was put, is
// computed from then on only. Fewer than two keys say nothing.
func (p *Prefills) Missed(now time.Duration, space string, keys []uint64) {
	n := len(keys)
	if n < 2 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits == nil {
		p.waits, p.spaces = map[uint64]awaited{}, map[string]*prefill{}
	}
	if old, is := p.waits[keys[n-1]]; is && old.blocks == n && old.of.blocks == 0 {
		old.of.at = now
		return
	}
	m := &missed{space: space, at: now}
	step := (n + prefillKeys - 1) / prefillKeys
	for i := n - 1; i >= 0; i -= step { // the last one among them
		k := keys[i]
		if old, is := p.waits[k]; is && old.of.blocks > 0 && now-old.of.at < prefillFor {
			continue // it is being computed
		}
		p.waits[k] = awaited{m, i + 1}
		p.order = append(p.order, wait{k, m})
	}
	for len(p.order) > prefillWaits {
		if w := p.order[0]; p.waits[w.key].of == w.of {
			delete(p.waits, w.key)
		}
		p.order = p.order[1:]
	}
	p.waiting.Store(len(p.waits) > 0)
}

// Awaits reports whether there is a block for whose put is waited; if not, Stored learns nothing.
func (p *Prefills) Awaits() bool { return p.waiting.Load() }

// Stored notes that a block was put, by the fingerprint of its key.
func (p *Prefills) Stored(now time.Duration, key uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, is := p.waits[key]
	if !is {
		return
	}
	delete(p.waits, key)
	p.waiting.Store(len(p.waits) > 0)
	m := w.of
	if now-m.at > prefillFor || w.blocks <= m.blocks {
		return
	}
	if m.blocks == 0 {
		p.countLocked(m)
	}
	m.blocks, m.took = w.blocks, now-m.at
}

// countLocked counts a chain among those of its namespace.
func (p *Prefills) countLocked(m *missed) {
	s := p.spaces[m.space]
	if s == nil {
		if len(p.spaces) == prefillSpaces {
			p.forgetOldestLocked()
		}
		s = &prefill{}
		p.spaces[m.space] = s
	}
	if s.runs = append(s.runs, m); len(s.runs) > prefillRuns {
		s.runs = slices.Delete(s.runs, 0, 1)
	}
}

// forgetOldestLocked forgets the namespace of which nothing was learned for the longest time.
func (p *Prefills) forgetOldestLocked() {
	oldest, at := "", time.Duration(math.MaxInt64)
	for space, s := range p.spaces {
		if last := s.runs[len(s.runs)-1].at; last < at {
			oldest, at = space, last
		}
	}
	delete(p.spaces, oldest)
}

// PerBlock is how long computing a block of a namespace takes; 0: not known.
func (p *Prefills) PerBlock(space string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spaces[space]
	if s == nil || len(s.runs) < leastRuns {
		return 0
	}
	runs, all := slices.Clone(s.runs), 0
	slices.SortFunc(runs, func(a, b *missed) int { return cmp.Compare(a.perBlock(), b.perBlock()) })
	for _, m := range runs {
		all += m.blocks
	}
	for _, m := range runs {
		if all -= 2 * m.blocks; all <= 0 {
			return max(m.perBlock(), 1)
		}
	}
	return 0
}
