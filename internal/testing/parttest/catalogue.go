package parttest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/tiers"
)

// Catalogue is what other ranks and earlier jobs left in the cold tier, in memory. It
// implements tiers.Catalogue, and records what it is called for.
type Catalogue struct {
	mu        sync.Mutex
	order     []residency.NameID
	has       map[residency.NameID]tiers.Found
	refuse    error
	withdrawn [][]block.Name
	forgotten []tiers.Found
	gate      chan struct{} // what Peek waits for, nil: nothing
}

// Hold makes a block known, at a place of its own.
func (c *Catalogue) Hold(n block.Name, data []byte) tiers.Found { return c.HoldAt(n, data, n.Key) }

// HoldAt is Hold in a segment, of which nothing else need be known.
func (c *Catalogue) HoldAt(n block.Name, data []byte, path string) tiers.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has == nil {
		c.has = map[residency.NameID]tiers.Found{}
	}
	f := tiers.Found{
		Name: n, Info: block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)},
		Segment: tiers.Segment{Path: path},
	}
	id := residency.NameID{NS: n.Namespace, Key: n.Key}
	c.has[id] = f
	c.order = append(c.order, id)
	return f
}

// Refuse has Withdraw fail with err; nil ends that.
func (c *Catalogue) Refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = err
}

// AdoptParts does nothing.
func (c *Catalogue) AdoptParts(context.Context, []tiers.Part, func([]tiers.Found)) (tiers.Taken, error) {
	return tiers.Taken{}, nil
}

// Find returns what Hold made known.
func (c *Catalogue) Find(ns string, keys []string) []tiers.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := make([]tiers.Found, len(keys))
	for i, k := range keys {
		found[i] = c.has[residency.NameID{NS: ns, Key: k}]
	}
	return found
}

// Probe reports of which keys Hold made a block known.
func (c *Catalogue) Probe(ns string, keys []string) []tiers.Presence {
	present := make([]tiers.Presence, len(keys))
	for i, f := range c.Find(ns, keys) {
		if !f.Info.ID.IsZero() {
			present[i] = tiers.Presence{Found: true, Bound: f.Name.Bound, Size: f.Info.Size, Seq: f.Name.Seq}
		}
	}
	return present
}

// Stop has Peek wait until the returned function is called.
func (c *Catalogue) Stop() (goOn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gate = make(chan struct{})
	return sync.OnceFunc(func() { close(c.gate) })
}

// Peek is Find.
func (c *Catalogue) Peek(ns string, keys []string) []tiers.Found {
	c.mu.Lock()
	gate := c.gate
	c.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return c.Find(ns, keys)
}

// Names calls fn for all names, in the order in which Hold was called.
func (c *Catalogue) Names(_ bool, fn func(tiers.Found) bool) error {
	c.mu.Lock()
	all := slices.Clone(c.order)
	c.mu.Unlock()
	for _, id := range all {
		if f := c.Find(id.NS, []string{id.Key})[0]; !f.Info.ID.IsZero() && !fn(f) {
			break
		}
	}
	return nil
}

// Withdraw takes out names, and records them.
func (c *Catalogue) Withdraw(_ context.Context, names ...block.Name) ([]bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return nil, c.refuse
	}
	there := make([]bool, len(names))
	for i, n := range names {
		id := residency.NameID{NS: n.Namespace, Key: n.Key}
		if f, ok := c.has[id]; ok && f.Name.Seq < n.Seq {
			there[i] = true
			delete(c.has, id)
		}
	}
	c.withdrawn = append(c.withdrawn, slices.Clone(names))
	return there, nil
}

// Withdrawn returns what was withdrawn together, since the last call.
func (c *Catalogue) Withdrawn() [][]block.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.withdrawn
	c.withdrawn = nil
	return all
}

// Forget takes out what is where it should not be, and records that.
func (c *Catalogue) Forget(_ context.Context, at ...tiers.Found) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.has, func(_ residency.NameID, f tiers.Found) bool {
		return slices.ContainsFunc(at, func(a tiers.Found) bool { return a.Info.ID == f.Info.ID && a.Segment == f.Segment })
	})
	c.forgotten = append(c.forgotten, at...)
	return nil
}

// Forgotten returns what Forget was called for.
func (c *Catalogue) Forgotten() []tiers.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgotten
}

// Err returns nil.
func (c *Catalogue) Err() error { return nil }

// State returns nothing.
func (c *Catalogue) State() tiers.CatalogueState { return tiers.CatalogueState{} }

// Own returns nothing: all that Hold made known is of others.
func (c *Catalogue) Own(ids []block.ID) []tiers.Found { return make([]tiers.Found, len(ids)) }

// Blocks returns nothing.
func (c *Catalogue) Blocks(ids []block.ID) []tiers.Found { return make([]tiers.Found, len(ids)) }

// ScanOwn returns nothing.
func (c *Catalogue) ScanOwn(string, bool, uint64, func(tiers.Found) bool) (uint64, error) {
	return 0, nil
}

// Newer returns that there are none.
func (c *Catalogue) Newer(names []block.Name) ([]bool, error) { return make([]bool, len(names)), nil }

// Namespaces returns those of what Hold made known.
func (c *Catalogue) Namespaces() (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.order {
		if !slices.Contains(all, id.NS) {
			all = append(all, id.NS)
		}
	}
	return all
}
