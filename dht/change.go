package dht

import (
	"maps"
	"slices"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
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

// SetMember tells the node of a rank, or of a change of its state or
// incarnation. Calls must not overlap.
func (n *Node) SetMember(m Member) { n.SetMembers(m) }

// SetMembers is SetMember for several ranks that change at once: the ring moves
// once. Calls must not overlap.
func (n *Node) SetMembers(changed ...Member) {
	old := n.view.Load()
	next := &view{members: maps.Clone(old.members), ring: old.ring, former: old.former, until: old.until}
	var lost []Member
	for _, m := range changed {
		was, known := old.members[m.Rank]
		if m.Rank == n.self || known && was.Incarnation > m.Incarnation {
			continue
		}
		if known && (was.Incarnation < m.Incarnation || m.State == fabric.Gone) {
			lost = append(lost, was)
		}
		next.members[m.Rank] = m
		n.fab.SetPeer(fabric.Peer{Rank: m.Rank, Incarnation: m.Incarnation, Addr: m.Addr, State: m.State})
	}
	moved := n.move(old, next)
	n.view.Store(next)
	for _, m := range lost {
		n.dir.Lost(m.Rank, m.Incarnation)
	}
	returned := lives(changed, lost)
	if moved || len(returned) > 0 {
		n.start(func() { n.rehome(old, next, returned) })
	}
}

// lives are the ranks among changed that replaced one that was lost: they are
// at their old place in the ring, and know nothing.
func lives(changed, lost []Member) (again []fabric.Rank) {
	for _, m := range changed {
		if m.State != fabric.Gone && slices.ContainsFunc(lost, func(l Member) bool { return l.Rank == m.Rank }) {
			again = append(again, m.Rank)
		}
	}
	return again
}

// move gives next its ring; false when the ranks in it are the same.
func (n *Node) move(old, next *view) bool {
	var ranks []fabric.Rank
	for r, m := range next.members {
		if m.State != fabric.Gone {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	if slices.Equal(ranks, old.ring.Ranks()) {
		return false
	}
	r, err := old.ring.Next(ranks)
	if err != nil {
		n.o.Log.Error("the ring stays as it is", "ranks", len(ranks), "err", err)
		return false
	}
	next.ring, next.former, next.until = r, old.ring, n.o.Now().Add(n.o.Settle)
	return true
}

// rehome brings statements to the homes they have now: this rank's own, and
// those it keeps as the first home that is left of the former ones. What dead
// ranks left in the shared file system is known to homes only.
func (n *Node) rehome(old, next *view, returned []fabric.Rank) {
	news := func(ns, key string) []fabric.Rank {
		was, is := old.homes(ns, key), next.homes(ns, key)
		var out []fabric.Rank
		for _, h := range is {
			if !slices.Contains(was, h) || slices.Contains(returned, h) {
				out = append(out, h)
			}
		}
		return out
	}
	n.local.Names(func(ns, key string) bool { return len(news(ns, key)) > 0 }, func(s directory.Statement) {
		s.Owner, s.Incarnation = n.self, n.o.Incarnation
		n.tell(news(s.Name.Namespace, s.Name.Key), s)
	})
	var handed []directory.Statement
	n.dir.Each(func(s directory.Statement) bool {
		if s.Owner != n.self && n.firstLeft(old, next, returned, s) {
			handed = append(handed, s)
		}
		return true
	})
	for _, s := range handed {
		if to := news(s.Name.Namespace, s.Name.Key); len(to) > 0 {
			n.stats.handed.Add(1)
			n.tell(to, s)
		}
	}
}

// firstLeft tells whether this rank is the first of a statement's former homes
// that still knows it.
func (n *Node) firstLeft(old, next *view, returned []fabric.Rank, s directory.Statement) bool {
	for _, h := range old.homes(s.Name.Namespace, s.Name.Key) {
		if next.alive(h) && !slices.Contains(returned, h) {
			return h == n.self
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
