package residency

import (
	"cascadekv/cascade/names"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
	"cascadekv/internal/losslog"
)

// Counters are what is counted of requests and tiers, but for what a memory tier
// counts itself. Guarded by State.Mu.
type Counters struct {
	state *State
	Stats Stats // the rest is filled in by the store's Stats

	Losses Losses // of gets and look-ups; not guarded

	lost losslog.Log // of names, by their fingerprints
}

// HitLocked counts a get with the level that served it, and with those of
// memory that would have been faster.
func (c *Counters) HitLocked(from *Level, size int64) {
	c.state.Mu.AssertHeld()
	for _, m := range c.state.Mem {
		if m == from {
			break
		}
		m.Stats.Misses++
	}
	from.Stats.Hits++
	from.Stats.HitBytes += uint64(size)
}

// GotLocked counts a hit of a namespace.
func (c *Counters) GotLocked(ns string, v *View) {
	c.Stats.Hits++
	if sp := c.SpaceLocked(ns); sp != nil {
		sp.Hits++
	}
	c.HitLocked(v.From(), v.Size())
}

// Lookup counts a look-up of one name.
func (c *Counters) Lookup(ns string, found bool) {
	n := 0
	if found {
		n = 1
	}
	c.Lookups(ns, 1, n)
}

// Lookups counts a look-up of so many names, of which some were found.
func (c *Counters) Lookups(ns string, names, found int) {
	c.state.Mu.Lock()
	defer c.state.Mu.Unlock()
	c.LookupsLocked(ns, uint64(names), uint64(found))
}

// LookupsLocked is Lookups for those who hold the mutex.
func (c *Counters) LookupsLocked(ns string, names, found uint64) {
	c.state.Mu.AssertHeld()
	c.Stats.Lookups += names
	c.Stats.Found += found
	if sp := c.SpaceLocked(ns); sp != nil && names > 0 {
		sp.Lookups += names
		sp.Found += found
	}
}

// MissesLocked counts n misses of a namespace.
func (c *Counters) MissesLocked(ns string, n uint64) {
	c.state.Mu.AssertHeld()
	if n == 0 {
		return
	}
	c.Stats.Misses += n
	for _, m := range c.state.Levels {
		m.Stats.Misses += n
	}
	c.state.Remote.Stats.Misses += n // shown where there are peers
	if sp := c.SpaceLocked(ns); sp != nil {
		sp.Misses += n
	}
}

// SpaceLocked is the namespace ns, for counting; nil where that would be one
// too many, or too long, for what asks may name any, and for directory.Contents.
func (c *Counters) SpaceLocked(ns string) *names.Space {
	c.state.Mu.AssertHeld()
	if sp := c.state.Mu.Names.Space(ns); sp != nil || ns == directory.Contents || len(ns) > block.MaxKey || c.state.Mu.Names.SpaceCount() >= names.KeepSpaces {
		return sp
	}
	return c.state.Mu.Names.AddSpace(ns)
}

// PutLocked counts a put of n.
func (c *Counters) PutLocked(n *names.Name) {
	c.state.Mu.AssertHeld()
	c.Stats.Puts++
	n.Space().Puts++
}

// DuplicateLocked counts a put of bytes that were stored already.
func (c *Counters) DuplicateLocked(n *names.Name, alias bool) {
	c.Stats.Duplicates++
	if alias {
		n.Space().Aliases++
	}
}

// Rejected counts a put that was dropped for want of room.
func (c *Counters) Rejected() {
	c.state.Mu.Lock()
	defer c.state.Mu.Unlock()
	c.Stats.Rejected++
}
