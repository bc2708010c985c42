package dht

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

const (
	// clearedFor is how long a clearing is remembered: a rank that was cut off for longer
	// keeps what it has.
	clearedFor = 10 * time.Minute

	// maxCleared bounds the clearings that are remembered; the oldest is forgotten first.
	maxCleared = 64
)

// clearing is remembered by all ranks that heard of it. The one that cleared repeats it to those
// that did not.
type clearing struct {
	clearedMessage
	until     time.Time              // when it is forgotten
	confirmed map[fabric.Rank]uint64 // the incarnations that heard of it; nil: another rank cleared
}

// clearings are the last ones. The zero value has none.
type clearings struct {
	mu     sync.Mutex
	list   []clearing                       // the oldest first
	busy   bool                             // they are being repeated
	shared atomic.Pointer[[]clearedMessage] // as in list; never changes
}

// before is the stamp below which puts of a namespace are gone; 0: none are known to be.
func (c *clearings) before(namespace string) (stamp uint64) {
	list := c.shared.Load()
	if list == nil || namespace == directory.Contents {
		return 0
	}
	for i := range *list {
		if m := &(*list)[i]; m.All || m.Namespace == namespace {
			stamp = max(stamp, m.Before)
		}
	}
	return stamp
}

// add remembers a clearing, in place of an earlier one of the same names. ours: this rank is to
// repeat it.
func (c *clearings) add(m clearedMessage, ours bool, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(x clearing) bool { return x.All == m.All && (m.All || x.Namespace == m.Namespace) }
	if slices.ContainsFunc(c.list, func(x clearing) bool { return same(x) && x.Before >= m.Before }) {
		return
	}
	c.list = slices.DeleteFunc(c.list, same)
	if len(c.list) >= maxCleared {
		c.list = slices.Delete(c.list, 0, 1)
	}
	x := clearing{clearedMessage: m, until: now.Add(clearedFor)}
	if ours {
		x.confirmed = map[fabric.Rank]uint64{}
	}
	c.list = append(c.list, x)
	c.shareLocked()
}

func (c *clearings) shareLocked() {
	var list []clearedMessage
	for _, x := range c.list {
		list = append(list, x.clearedMessage)
	}
	c.shared.Store(&list)
}

// sweep forgets those whose time is over.
func (c *clearings) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.list); n > 0 {
		if c.list = slices.DeleteFunc(c.list, func(x clearing) bool { return !now.Before(x.until) }); len(c.list) < n {
			c.shareLocked()
		}
	}
}

// unconfirmed returns what a process has not confirmed yet.
func (c *clearings) unconfirmed(m Member) (list []clearedMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.list {
		if by, ok := x.confirmed[m.Rank]; x.confirmed != nil && (!ok || by < m.Incarnation) {
			list = append(list, x.clearedMessage)
		}
	}
	return list
}

// confirm records that a process has heard of a clearing.
func (c *clearings) confirm(is clearedMessage, m Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.list {
		if x.clearedMessage == is && x.confirmed != nil {
			x.confirmed[m.Rank] = m.Incarnation
		}
	}
}

// turn begins or ends to repeat clearings, and reports whether nobody else does.
func (c *clearings) turn(begin bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	free := !begin || !c.busy && len(c.list) > 0
	if free {
		c.busy = begin
	}
	return free
}

// wasCleared empties a namespace of what was put before it was cleared.
func wasCleared(n *Node, m clearedMessage) {
	n.clearings.add(m, false, n.o.Now())
	n.dir.Clear(m.Namespace, m.All, m.Before)
	n.local.Cleared(m.Namespace, m.All, m.Before)
}

// repeatClearings sends, in the background, what this rank cleared lately to all ranks that have
// not confirmed it, of whatever incarnation they are by now.
func repeatClearings(n *Node) {
	n.clearings.sweep(n.o.Now())
	if !n.clearings.turn(true) {
		return
	}
	started := n.start(func() {
		defer n.clearings.turn(false)
		v := n.view.Load()
		_ = n.each(n.peers(), func(r fabric.Rank) error {
			for _, m := range n.clearings.unconfirmed(v.members[r]) {
				if _, err := n.call(n.work, r, kindCleared, &m); !settled(err) {
					return err // the next time
				}
				n.clearings.confirm(m, v.members[r])
			}
			return nil
		})
	})
	if !started {
		n.clearings.turn(false)
	}
}
