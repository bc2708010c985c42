package dht

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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
	// Healthy homes are asked before suspects.
	first := func(i int) (fabric.Rank, bool) { return v.home(namespace, keys[i], 0) }
	failed := n.locateAt(ctx, namespace, keys, found, byHome(ask, first))
	if len(failed) > 0 {
		second := func(i int) (fabric.Rank, bool) { return v.home(namespace, keys[i], 1) }
		homes := byHome(failed, second)
		unanswered := len(failed) + len(n.locateAt(ctx, namespace, keys, found, homes))
		for _, group := range homes {
			unanswered -= len(group)
		}
		n.stats.unlocated.Add(uint64(unanswered))
	}
	if v.former != nil && now.Before(v.until) {
		before := &view{members: v.members, ring: v.former}
		former := func(i int) (fabric.Rank, bool) { // of a key that was not found, where that is another one
			h, ok := before.home(namespace, keys[i], 0)
			asked, _ := first(i)
			return h, ok && found[i] == nil && h != asked
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

// home returns the choice'th home of a name, suspects last.
func (v *view) home(namespace, key string, choice int) (fabric.Rank, bool) {
	homes := v.homes(namespace, key)
	for _, state := range []fabric.State{fabric.Alive, fabric.Suspect} {
		for _, h := range homes {
			if v.state(h) != state {
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
			found[i] = n.others(f.Copies)
		}
	}
}

func (n *Node) locateSome(ctx context.Context, home fabric.Rank, namespace string, keys []string, found [][]directory.Statement, part []int) error {
	m := keysMessage{Namespace: namespace, Keys: make([]string, len(part))}
	for j, i := range part {
		m.Keys[j] = keys[i]
	}
	answer, err := n.call(ctx, home, kindLocate, &m)
	if err != nil {
		return err
	}
	var copies copiesMessage
	if err := decode(answer, &copies); err != nil {
		return err
	}
	if len(copies) != len(part) {
		return fmt.Errorf("%w: %d answers to %d questions", errBadMessage, len(copies), len(part))
	}
	for j, i := range part {
		for c := range copies[j] {
			copies[j][c].Name.Namespace, copies[j][c].Name.Key = namespace, keys[i]
		}
		found[i] = n.others(copies[j])
	}
	return nil
}

// others leaves out this rank's own copies: whoever asks has looked there. A
// segment of an earlier life of this rank is nobody's, and stays.
func (n *Node) others(copies []directory.Statement) []directory.Statement {
	copies = slices.DeleteFunc(copies, func(s directory.Statement) bool {
		return s.Owner == n.self && s.Incarnation == n.o.Incarnation
	})
	if len(copies) == 0 {
		return nil
	}
	return copies
}

// Read copies a located block out of some owner's memory into dst, which must
// be arena memory of exactly its size. It tries the owners in turn, each some times
// more if the block moves there meanwhile. Its checksum is the caller's to
// check. Errors: ErrGone, ctx's; one with a Done method as fabric.Fabric.Read
// says: dst is not the caller's until then.
func (n *Node) Read(caller context.Context, copies []directory.Statement, dst []byte) error {
	ctx, cancel := context.WithTimeout(caller, n.o.ReadDeadline)
	defer cancel()
	owners := n.inMemory(copies, int64(len(dst)))
	err := error(ErrGone)
	for i, s := range owners {
		if err = n.readInTime(ctx, caller, s, dst, i == len(owners)-1); err == nil || lingers(err) || ctx.Err() != nil {
			return err
		}
	}
	if errors.Is(err, ErrGone) {
		return err
	}
	return errors.Join(ErrGone, err)
}

// inMemory lists the copies to read, suspects' last.
func (n *Node) inMemory(copies []directory.Statement, size int64) (owners []*directory.Statement) {
	v := n.view.Load()
	for _, state := range []fabric.State{fabric.Alive, fabric.Suspect} {
		for i := range copies {
			// Readers begin at different owners, to share the load.
			s := &copies[(i+int(n.self))%len(copies)]
			if s.Memory != nil && s.Info.Size == size && v.state(s.Owner) == state && !v.dead(s.Owner, s.Incarnation) {
				owners = append(owners, s)
			}
		}
	}
	return owners
}

// readInTime reads from one owner, and leaves half of the time for the next.
func (n *Node) readInTime(ctx, caller context.Context, s *directory.Statement, dst []byte, last bool) error {
	if end, ok := ctx.Deadline(); ok && !last {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		return n.readFrom(half, caller, s, dst)
	}
	return n.readFrom(ctx, caller, s, dst)
}

func lingers(err error) bool {
	var l fabric.Lingering
	return errors.As(err, &l)
}

// maxMoves is how many times a read follows a block that moves while it is read.
const maxMoves = 4

// readFrom reads from one owner until ctx ends. It asks for the place of a block
// that has moved within the owner's memory since its home heard of it.
func (n *Node) readFrom(ctx, caller context.Context, s *directory.Statement, dst []byte) error {
	if !n.mayAsk(s.Owner) {
		return fmt.Errorf("dht: %v: %w", s.Owner, errSuspect)
	}
	source, err := s.Source(), error(nil)
	for moves := 0; ; moves++ {
		err = n.fab.Read(ctx, s.Owner, source, dst)
		n.heard(caller, s.Owner, err)
		if !errors.Is(err, fabric.ErrStale) || moves == maxMoves {
			break
		}
		n.stats.stale.Add(1)
		is, err := n.where(ctx, s)
		if err != nil {
			return err
		}
		if is.Memory == nil || !is.Agrees(s) {
			gone := *s
			gone.Memory = nil
			n.Invalidate(gone)
			return ErrGone
		}
		source = is.Source()
	}
	n.stats.read(len(dst), err)
	return err
}

// where asks an owner for its newest statement.
func (n *Node) where(ctx context.Context, s *directory.Statement) (*directory.Statement, error) {
	var is directory.Statement
	answer, err := n.call(ctx, s.Owner, kindWhere, &keysMessage{Namespace: s.Name.Namespace, Keys: []string{s.Name.Key}})
	if err == nil {
		err = decode(answer, &is)
	}
	return &is, err
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

// Touch reports to the owner of blocks, without waiting, that they were used here:
// keys of one chain, head first. Under load it is dropped.
func (n *Node) Touch(owner fabric.Rank, namespace string, keys []string) {
	select {
	case n.touching <- struct{}{}:
	default:
		return
	}
	started := n.start(func() {
		defer func() { <-n.touching }()
		for part := range slices.Chunk(keys, locateKeys) {
			_, _ = n.call(n.work, owner, kindTouch, &keysMessage{Namespace: namespace, Keys: part})
		}
	})
	if !started {
		<-n.touching
	}
}
