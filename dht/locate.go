package dht

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
)

// locateKeys bounds the keys of one message so that an answer of the longest
// names and segment paths fits a message.
const locateKeys = 128

// Locate asks the homes of keys where their blocks lie, with one message per
// home (per locateKeys keys). The result is parallel to keys; nil means that
// nobody is known to have the block, whatever the reason: a miss. Copies of
// this rank itself are left out.
func (n *Node) Locate(ctx context.Context, namespace string, keys []string) [][]directory.Statement {
	found := make([][]directory.Statement, len(keys))
	now := n.o.Now()
	ask := make([]int, 0, len(keys))
	for i, k := range keys {
		if n.negative.has(namespace, k, now) {
			n.stats.negative.Add(1)
			continue
		}
		ask = append(ask, i)
	}
	n.stats.lookups.Add(uint64(len(ask)))
	v := n.view.Load()
	asked := v.fewHomes(n.self, namespace, keys, ask)
	first := func(i int) (h fabric.Rank, ok bool) {
		h, ok = asked[i]
		return h, ok
	}
	second := func(i int) (fabric.Rank, bool) { // not the one that was asked
		h, ok := v.home(n.self, namespace, keys[i], 0)
		if ok && h == asked[i] {
			h, ok = v.home(n.self, namespace, keys[i], 1)
		}
		return h, ok && h != asked[i]
	}
	failed := n.locateAt(ctx, namespace, keys, found, byHome(ask, first))
	if len(failed) > 0 {
		homes := byHome(failed, second)
		unanswered := len(failed) + len(n.locateAt(ctx, namespace, keys, found, homes))
		for _, group := range homes {
			unanswered -= len(group)
		}
		n.stats.unlocated.Add(uint64(unanswered))
	}
	if v.former != nil && now.Before(v.until) {
		before := &view{members: v.members, ring: v.former}
		former := func(i int) (fabric.Rank, bool) { // of a key that was not found
			if found[i] != nil {
				return 0, false
			}
			if h, ok := before.home(n.self, namespace, keys[i], 0); ok && h != asked[i] {
				return h, true
			}
			h, ok := second(i)
			return h, ok && asked[i] == n.self // which may be a home only since then
		}
		n.locateAt(ctx, namespace, keys, found, byHome(ask, former))
	}
	for _, i := range ask {
		if found[i] == nil && ctx.Err() == nil {
			n.negative.add(namespace, keys[i], now)
		}
	}
	return found
}

// byHome groups keys, by their places in the request, by the home to ask; false:
// none.
func byHome(ask []int, home func(i int) (fabric.Rank, bool)) map[fabric.Rank][]int {
	groups := map[fabric.Rank][]int{}
	for _, i := range ask {
		if h, ok := home(i); ok {
			groups[h] = append(groups[h], i)
		}
	}
	return groups
}

// fewHomes chooses which home self asks first for each key, by its place in the request.
// Each rank is one message, so that of a key's homes it is the one that is a home of most
// keys, and among equals the first.
func (v *view) fewHomes(self fabric.Rank, namespace string, keys []string, ask []int) map[int]fabric.Rank {
	chosen := make(map[int]fabric.Rank, len(ask))
	most := map[fabric.Rank]int{}
	var open []int
	for _, i := range ask {
		h, ok := v.home(self, namespace, keys[i], 0)
		if !ok {
			continue
		}
		if chosen[i] = h; h == self || v.state(h) != fabric.Alive {
			continue
		}
		open = append(open, i)
		for _, h := range v.homes(namespace, keys[i]) {
			most[h]++
		}
	}
	for _, i := range open {
		for _, h := range v.homes(namespace, keys[i]) {
			if v.state(h) == fabric.Alive && most[h] > most[chosen[i]] {
				chosen[i] = h
			}
		}
	}
	return chosen
}

// home returns the choice'th home of a name to be asked by self: self if it is one, for
// that takes no message, then others, suspects last.
func (v *view) home(self fabric.Rank, namespace, key string, choice int) (fabric.Rank, bool) {
	homes := v.homes(namespace, key)
	if slices.Contains(homes, self) {
		if choice == 0 {
			return self, true
		}
		choice--
	}
	for _, state := range []fabric.State{fabric.Alive, fabric.Suspect} {
		for _, h := range homes {
			if h == self || v.state(h) != state {
				continue
			}
			if choice == 0 {
				return h, true
			}
			choice--
		}
	}
	return 0, false
}

// locateAt asks each home for its keys, all at once, and returns the keys whose
// home did not answer.
func (n *Node) locateAt(ctx context.Context, namespace string, keys []string, found [][]directory.Statement, groups map[fabric.Rank][]int) (failed []int) {
	type question struct {
		home fabric.Rank
		part []int
	}
	var questions []question
	for home, group := range groups {
		if home == n.self {
			n.locateHere(namespace, keys, found, group)
			continue
		}
		for part := range slices.Chunk(group, locateKeys) {
			questions = append(questions, question{home, part})
		}
	}
	var mu sync.Mutex
	put := func(q question) {
		if err := n.locateSome(ctx, q.home, namespace, keys, found, q.part); err != nil {
			n.bad(q.home, err)
			mu.Lock()
			failed = append(failed, q.part...)
			mu.Unlock()
		}
	}
	var wait sync.WaitGroup
	for i, q := range questions {
		if i > 0 {
			wait.Go(func() { put(q) })
		}
	}
	if len(questions) > 0 {
		put(questions[0]) // mostly the only one
	}
	wait.Wait()
	return failed
}

func (n *Node) locateHere(namespace string, keys []string, found [][]directory.Statement, group []int) {
	for _, i := range group {
		if f, ok := n.dir.Lookup(namespace, keys[i], n.o.Now()); ok {
			found[i] = elsewhere(n, f.Copies)
		}
	}
}

func (n *Node) locateSome(ctx context.Context, home fabric.Rank, namespace string, keys []string, found [][]directory.Statement, part []int) error {
	m := keysMessage{Namespace: namespace, Keys: make([]string, len(part))}
	for j, i := range part {
		m.Keys[j] = keys[i]
	}
	copies, err := copiesAt(ctx, n, home, &m)
	if err != nil {
		return err
	}
	for j, i := range part {
		for c := range copies[j] {
			copies[j][c].Name.Namespace, copies[j][c].Name.Key = namespace, keys[i]
		}
		found[i] = elsewhere(n, copies[j])
	}
	return nil
}

// copiesAt asks a home for the copies of keys, and returns them in parallel to these.
func copiesAt(ctx context.Context, n *Node, home fabric.Rank, m *keysMessage) (copies copiesMessage, err error) {
	answer, err := n.call(ctx, home, kindLocate, m)
	if err != nil {
		return nil, err
	}
	if err := decode(answer, &copies); err != nil {
		return nil, err
	}
	if len(copies) != len(m.Keys) {
		return nil, fmt.Errorf("%w: %d answers to %d questions", errBadMessage, len(copies), len(m.Keys))
	}
	return copies, nil
}

// elsewhere leaves out a rank's own copies: whoever asks has looked there. A
// segment of an earlier life of this rank is nobody's, and stays. What was cleared, and its
// owner or home has not heard of it, is left out too.
func elsewhere(n *Node, copies []directory.Statement) []directory.Statement {
	copies = slices.DeleteFunc(copies, func(s directory.Statement) bool {
		return s.Owner == n.self && s.Incarnation == n.o.Incarnation || s.Name.Seq < n.clearings.before(s.Name.Namespace)
	})
	if len(copies) == 0 {
		return nil
	}
	return copies
}

// Invalidate reports to the homes of a statement, without waiting, that what it says of
// copies is wrong: s carries what is left of them.
func (n *Node) Invalidate(s directory.Statement) {
	for _, h := range n.view.Load().everyHome(s.Name.Namespace, s.Name.Key, n.o.Now()) {
		if h == n.self {
			n.dir.Invalidate(s)
			continue
		}
		n.start(func() { _, _ = n.call(n.work, h, kindInvalidate, &s) }) // the next reader finds out too
	}
}
