package dht

import (
	"maps"
	"slices"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// homes are the ranks that keep a name's entry, the primary first.
func (v *view) homes(namespace, key string) []fabric.Rank {
	return v.ring.Homes(v.ring.Partition(namespace, key))
}

func (v *view) alive(r fabric.Rank) bool { return v.state(r) != fabric.Gone }

func (v *view) state(r fabric.Rank) fabric.State {
	m, ok := v.members[r]
	if !ok {
		return fabric.Gone
	}
	return m.State
}

// dead reports whether a rank's process is known to be no more.
func (v *view) dead(r fabric.Rank, incarnation uint64) bool {
	m, known := v.members[r]
	return known && (m.State == fabric.Gone || m.Incarnation > incarnation)
}

// everyHome are the homes of a name and, while the ring settles, the former
// ones that are left.
func (v *view) everyHome(namespace, key string, now time.Time) []fabric.Rank {
	p := v.ring.Partition(namespace, key)
	all := slices.Clip(v.ring.Homes(p))
	if v.former != nil && now.Before(v.until) {
		for _, h := range v.former.Homes(p) {
			if v.alive(h) && !slices.Contains(all, h) {
				all = append(all, h)
			}
		}
	}
	return all
}

// SetMembers adds ranks, or changes of their states or
// incarnations: for those that change at once the ring moves once. Calls must
// not overlap.
func (n *Node) SetMembers(changed ...Member) {
	old := n.view.Load()
	next := &view{members: maps.Clone(old.members), ring: old.ring, former: old.former, until: old.until}
	lost := map[fabric.Rank]uint64{}   // the last incarnation that is dead
	var returned, silent []fabric.Rank // see below
	doubted := false
	for _, m := range changed {
		was, known := next.members[m.Rank]
		if m.Rank == n.self || known && was.Incarnation > m.Incarnation {
			continue
		}
		switch {
		case m.State == fabric.Gone && !(known && was == m):
			lost[m.Rank] = m.Incarnation
		case m.State != fabric.Gone && known && was.Incarnation < m.Incarnation:
			// It is at its old place in the ring, with an empty directory.
			lost[m.Rank] = m.Incarnation - 1
			returned = append(returned, m.Rank)
		case m.State != fabric.Gone && known && was.State == fabric.Gone:
			// It may never have known that it was gone for this rank, which has
			// forgotten what it stated.
			silent = append(silent, m.Rank)
		case m.State == fabric.Suspect && known && was.State == fabric.Alive:
			doubted = true
		}
		next.members[m.Rank] = m
		n.fab.SetPeer(fabric.Peer{Rank: m.Rank, Incarnation: m.Incarnation, Addr: m.Addr, State: m.State})
	}
	moved := n.move(old, next)
	n.view.Store(next)
	if len(lost) > 0 {
		n.dir.Lost(lost)
	}
	switch {
	case moved || len(returned) > 0:
		n.start(func() { n.rehome(old, next, returned) })
	case doubted && next.former != nil:
		// It may have died before its statements reached the homes that it got lately.
		before := &view{members: next.members, ring: next.former}
		n.start(func() { n.rehome(before, next, nil) })
	}
	for _, r := range silent {
		n.start(func() { askAgain(n, r) })
	}
}

// askAgain asks a rank to state what this one is a home of.
func askAgain(n *Node, r fabric.Rank) {
	delay := retryFirst
	for n.view.Load().alive(r) && n.work.Err() == nil {
		if _, err := n.call(n.work, r, kindResync, nil); settled(err) {
			return
		}
		delay = n.pause(delay)
	}
}

// resync states to a home all that it should know of this rank.
func (n *Node) resync(home fabric.Rank) {
	n.start(func() {
		v := n.view.Load()
		isHome := func(ns, key string) bool { return slices.Contains(v.homes(ns, key), home) }
		n.local.Names(isHome, func(s directory.Statement) { n.enqueueOwn([]fabric.Rank{home}, s) })
	})
}

// enqueueOwn hands a statement of this rank to homes.
func (n *Node) enqueueOwn(homes []fabric.Rank, s directory.Statement) {
	s.Owner, s.Incarnation = n.self, n.o.Incarnation
	for _, h := range homes {
		n.enqueue(h, &s)
	}
}

// move gives next its ring; false when the ranks in it are the same.
func (n *Node) move(old, next *view) bool {
	var ranks []fabric.Rank
	for r, m := range next.members {
		if m.State != fabric.Gone {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == old.ring.Len() && !slices.ContainsFunc(ranks, func(r fabric.Rank) bool { return !old.ring.Has(r) }) {
		return false
	}
	r, err := n.o.Ring(old.ring, ranks)
	if err != nil {
		n.o.Log.Error("the ring stays as it is", "ranks", len(ranks), "err", err)
		return false
	}
	now := n.o.Now()
	if old.former != nil { // of names that it was no home of lately it heard no changes
		n.dir.Keep(func(ns, key string) bool {
			p := r.Partition(ns, key)
			return !r.IsHome(n.self, p) || slices.Contains(old.everyHome(ns, key, now), n.self)
		})
	}
	next.ring, next.former, next.until = r, old.ring, now.Add(n.o.Settle)
	return true
}

// rehome brings statements to the homes they have now: this rank's own, and of
// those it keeps the ones whose owner can not, or may not be able to. What dead
// ranks left in the shared file system is known to homes only: the first that is
// left of the former ones hands it on.
func (n *Node) rehome(old, next *view, returned []fabric.Rank) {
	news := func(ns, key string) (to []fabric.Rank) {
		p := next.ring.Partition(ns, key)
		was := old.ring.Homes(p)
		for _, h := range next.ring.Homes(p) {
			if !slices.Contains(was, h) || slices.Contains(returned, h) {
				to = append(to, h)
			}
		}
		return to
	}
	n.local.Names(func(ns, key string) bool { return len(news(ns, key)) > 0 }, func(s directory.Statement) {
		n.enqueueOwn(news(s.Name.Namespace, s.Name.Key), s)
	})
	var handed []directory.Statement
	n.dir.Each(func(s directory.Statement) bool {
		if !next.speaks(s.Owner, s.Incarnation) && next.firstLeft(old, n.self, returned, s) {
			handed = append(handed, s)
		}
		return true
	})
	handDeletions(n, old, next, returned, news)
	for _, s := range handed {
		to := news(s.Name.Namespace, s.Name.Key)
		if !next.dead(s.Owner, s.Incarnation) {
			// What waits for a home that does not answer may be outdated when it
			// does: it would learn of a value that was deleted meanwhile.
			to = slices.DeleteFunc(to, func(h fabric.Rank) bool { return next.state(h) != fabric.Alive })
		}
		if len(to) > 0 {
			n.stats.handed.Add(1)
			for _, h := range to {
				n.enqueue(h, &s)
			}
		}
	}
}

// handDeletions states what was deleted lately to homes that did not hear of it.
func handDeletions(n *Node, old, next *view, returned []fabric.Rank, news func(ns, key string) []fabric.Rank) {
	var list stales
	n.dir.EachDeleted(func(ns, key string, below uint64) {
		s := directory.Statement{Name: block.Name{Namespace: ns, Key: key}}
		if len(news(ns, key)) > 0 && next.firstLeft(old, n.self, returned, s) {
			list = append(list, staleMessage{ns, key, below})
		}
	})
	for _, d := range list {
		stateDeleted(n, news(d.Namespace, d.Key), d.Namespace, d.Key, d.Before)
	}
}

// speaks reports whether the process that made a statement states it itself
// where it is due. Of suspects that is not known: stating it twice does no harm.
func (v *view) speaks(r fabric.Rank, incarnation uint64) bool {
	m, known := v.members[r]
	return known && m.State == fabric.Alive && m.Incarnation <= incarnation
}

// firstLeft reports whether a rank is the first of a statement's former homes
// that still has it.
func (v *view) firstLeft(old *view, self fabric.Rank, returned []fabric.Rank, s directory.Statement) bool {
	for _, h := range old.homes(s.Name.Namespace, s.Name.Key) {
		if v.state(h) == fabric.Alive && !slices.Contains(returned, h) {
			return h == self
		}
	}
	return false
}

// settled ends the time after a change: the former homes are not asked any
// more, and forget what is not theirs.
func (n *Node) settled() {
	v := n.view.Load()
	if v.former == nil || n.o.Now().Before(v.until) {
		return
	}
	next := *v
	next.former = nil
	if !n.view.CompareAndSwap(v, &next) {
		return // it changed again meanwhile
	}
	n.dir.Keep(func(ns, key string) bool { return slices.Contains(next.homes(ns, key), n.self) })
}
