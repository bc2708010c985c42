package dht

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// Delete withdraws a name everywhere: its homes delete it and notify the owners.
// stamp is the newest put stamp the caller knows of. It returns when the homes
// have done so, or the deadline has passed; homes that could not be reached are in
// the error, and hear of it when they answer.
func (n *Node) Delete(ctx context.Context, namespace, key string, stamp uint64) error {
	if namespace == directory.Contents { // whose keys are no names
		return nil
	}
	m := stampMessage{Namespace: namespace, Key: key, Stamp: stamp}
	n.local.Outdated(namespace, key, stamp+1)
	return n.each(n.view.Load().everyHome(namespace, key, n.o.Now()), func(h fabric.Rank) error {
		if h == n.self {
			n.deleteHere(ctx, &m)
			return nil
		}
		_, err := n.call(ctx, h, kindDelete, &m)
		if !settled(err) {
			stateDeleted(n, []fabric.Rank{h}, namespace, key, stamp+1)
		}
		return err
	})
}

// stateDeleted states to homes that puts of a name stamped below are gone, as of a put that has ended;
// of a later one that this rank has, that.
func stateDeleted(n *Node, homes []fabric.Rank, namespace, key string, below uint64) {
	s := n.local.State(namespace, key)
	if !s.Has() || s.Name.Seq < below {
		ended := block.Name{Namespace: namespace, Key: key, Seq: below, Expires: n.o.Now()}
		s = directory.Statement{Name: ended, Version: s.Version}
	}
	n.enqueueOwn(homes, s)
}

// deleteHere deletes a name this rank is a home of, and waits a while for its
// owners to confirm. Those that do not are sent it until they do.
func (n *Node) deleteHere(ctx context.Context, m *stampMessage) {
	owners := byOwner(n.dir.Delete(m.Namespace, m.Key, m.Stamp, n.o.Now()))
	if len(owners) == 0 {
		return
	}
	// Whoever deletes waits for this rank's answer, which is due before its
	// deadline.
	ctx, cancel := context.WithTimeout(ctx, n.o.CallDeadline/2)
	defer cancel()
	v := n.view.Load()
	_ = n.each(slices.Collect(maps.Keys(owners)), func(r fabric.Rank) error {
		list := owners[r]
		if r == n.self {
			n.outdated(list)
		} else if v.alive(r) {
			if _, err := n.call(ctx, r, kindDrop, &list); !settled(err) {
				n.box(r).outdate(n, r, list)
			}
		}
		return nil
	})
}

// Expire has a rank that has a name's block set when it ends, the zero time for
// never, and reports whether there is one. That is a put of the name: older
// copies give way to it. After an error it may not have been done.
func (n *Node) Expire(ctx context.Context, namespace, key string, at time.Time) (bool, error) {
	m := stampMessage{Namespace: namespace, Key: key}
	if !at.IsZero() {
		m.Stamp = uint64(at.UnixNano())
	}
	copies := n.Locate(ctx, namespace, []string{key})[0]
	var failed error
	for i := range copies {
		_, err := n.call(ctx, copies[i].Owner, kindExpire, &m)
		if err == nil {
			return true, nil
		}
		failed = errors.Join(failed, err)
	}
	return len(copies) > 0, failed
}

func (m *stampMessage) end() time.Time {
	if m.Stamp == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(m.Stamp))
}

// Clear empties a namespace, or all of them, on every rank, and waits for the
// answers until ctx ends. Ranks that do not answer, and those that come within
// clearedFor, lose what was put before the given stamp when they do: the newest that this
// rank has given or seen.
func (n *Node) Clear(ctx context.Context, namespace string, all bool, before uint64) error {
	m := clearMessage{Namespace: namespace, All: all}
	n.clearings.add(clearedMessage{namespace, all, before}, true, n.o.Now())
	n.clearHere(m)
	defer repeatClearings(n)
	return n.each(n.peers(), func(r fabric.Rank) error {
		_, err := n.call(ctx, r, kindClear, &m)
		return err
	})
}

func (n *Node) clearHere(m clearMessage) {
	n.dir.Clear(m.Namespace, m.All, math.MaxUint64)
	n.local.Cleared(m.Namespace, m.All, math.MaxUint64)
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
