package dht

import (
	"context"
	"errors"
	"sync"

	"cascadekv/dht/fabric"
)

// Delete withdraws a name everywhere: its homes bury it and tell the owners.
// stamp is the newest put stamp the caller knows of. It returns when the homes
// have done so, or the deadline has passed; homes that could not be told are in
// the error.
func (n *Node) Delete(ctx context.Context, namespace, key string, stamp uint64) error {
	m := buryMessage{Namespace: namespace, Key: key, Stamp: stamp}
	homes := n.view.Load().homes(namespace, key)
	return n.each(homes, func(h fabric.Rank) error {
		if h == n.self {
			return n.buryHere(m)
		}
		_, err := n.call(ctx, h, kindBury, &m)
		return err
	})
}

// buryHere buries a name this rank is a home of, and waits until its owners
// have been told.
func (n *Node) buryHere(m buryMessage) error {
	owners := map[fabric.Rank][]staleMessage{}
	for _, s := range n.dir.Bury(m.Namespace, m.Key, m.Stamp, n.o.Now()) {
		owners[s.Owner] = append(owners[s.Owner], staleMessage{Namespace: s.Namespace, Key: s.Key, Before: s.Before})
	}
	v := n.view.Load()
	var ranks []fabric.Rank
	for r := range owners {
		if v.alive(r) {
			ranks = append(ranks, r)
		}
	}
	return n.each(ranks, func(r fabric.Rank) error {
		if r == n.self {
			n.outdated(owners[r])
			return nil
		}
		_, err := n.call(n.work, r, kindDrop, owners[r])
		return err
	})
}

// Clear empties a namespace, or all of them, on every other rank, and waits
// for their answers until ctx ends.
func (n *Node) Clear(ctx context.Context, namespace string, all bool) error {
	m := clearMessage{Namespace: namespace, All: all}
	n.dir.Clear(namespace, all)
	return n.each(n.peers(), func(r fabric.Rank) error {
		_, err := n.call(ctx, r, kindClear, &m)
		return err
	})
}

func (n *Node) clearHere(m clearMessage) {
	n.dir.Clear(m.Namespace, m.All)
	n.local.Cleared(m.Namespace, m.All)
}

// peers are the other ranks that are not gone, by number.
func (n *Node) peers() []fabric.Rank {
	v := n.view.Load()
	var ranks []fabric.Rank
	for _, r := range v.ring.Ranks() {
		if r != n.self {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// each runs f for all ranks at once and joins the errors.
func (n *Node) each(ranks []fabric.Rank, f func(fabric.Rank) error) error {
	errs := make([]error, len(ranks))
	var wait sync.WaitGroup
	for i, r := range ranks {
		wait.Go(func() { errs[i] = f(r) })
	}
	wait.Wait()
	return errors.Join(errs...)
}
