package dht

import (
	"sync"
	"time"
)

// maxNegative bounds the keys remembered as unknown.
const maxNegative = 1 << 16

// negative remembers for a short time that no rank has a key: in one of two
// sets, which take turns, so that forgetting costs nothing.
type negative struct {
	mu       sync.Mutex
	half     time.Duration
	now, was map[nameKey]struct{}
	turned   time.Time
}

// newNegative remembers keys for at least half of d and at most d.
func newNegative(d time.Duration) *negative {
	return &negative{half: d / 2, now: map[nameKey]struct{}{}, was: map[nameKey]struct{}{}}
}

func (g *negative) turn(t time.Time) {
	since := t.Sub(g.turned)
	if since < g.half && len(g.now) < maxNegative/2 {
		return
	}
	g.now, g.was = g.was, g.now
	clear(g.now)
	if g.turned = t; since >= 2*g.half {
		clear(g.was)
	} else if since >= g.half {
		g.turned = t.Add(g.half - since) // when it was due, so that no key outlives its time
	}
}

func (g *negative) has(namespace, key string, t time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn(t)
	k := nameKey{namespace, key}
	if _, ok := g.now[k]; ok {
		return true
	}
	_, ok := g.was[k]
	return ok
}

func (g *negative) add(namespace, key string, t time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn(t)
	g.now[nameKey{namespace, key}] = struct{}{}
}
