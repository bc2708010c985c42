package dht

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

// Claim states contents (directory.Contents) that this rank is about to write to
// segments, and returns for each who has the bytes, in parallel to the list: owners with
// segments first, then those that have claimed them, in the order of their claims, this
// rank among them; those of which it is not known whether they live last, and none that is dead.
// Nil: its home did not answer. It asks the first home alone, so that all ranks see the same order;
// two messages for 128 contents.
func (n *Node) Claim(ctx context.Context, list []directory.Statement) [][]directory.Statement {
	v := n.view.Load()
	homes := map[fabric.Rank][]int{}
	for i := range list {
		s := &list[i]
		s.Owner, s.Incarnation = n.self, n.o.Incarnation
		h := v.homes(s.Name.Namespace, s.Name.Key)[0]
		homes[h] = append(homes[h], i)
	}
	found := make([][]directory.Statement, len(list))
	var wait sync.WaitGroup
	for h, group := range homes {
		wait.Go(func() {
			for part := range slices.Chunk(group, locateKeys) {
				if err := claimAt(ctx, n, h, list, part, found); err != nil {
					n.bad(h, err)
					return
				}
			}
		})
	}
	wait.Wait()
	for i, copies := range found {
		copies = slices.DeleteFunc(copies, func(s directory.Statement) bool { return s.Owner != n.self && v.dead(s.Owner, s.Incarnation) })
		slices.SortStableFunc(copies, func(a, b directory.Statement) int { return cmp.Compare(v.doubted(&a), v.doubted(&b)) })
		found[i] = copies
	}
	return found
}

// doubted is 1 of a statement of a process of which it is not known whether it lives, else 0.
func (v *view) doubted(s *directory.Statement) int {
	if m, known := v.members[s.Owner]; known && m.State == fabric.Alive && m.Incarnation == s.Incarnation {
		return 0
	}
	return 1
}

func claimAt(ctx context.Context, n *Node, home fabric.Rank, list []directory.Statement, part []int, found [][]directory.Statement) error {
	claims, keys := make(statements, len(part)), keysMessage{Namespace: directory.Contents, Keys: make([]string, len(part))}
	for j, i := range part {
		claims[j], keys.Keys[j] = list[i], list[i].Name.Key
	}
	if home == n.self {
		for j, i := range part {
			n.deliver(n.dir.Apply(claims[j], n.o.Now()))
			f, _ := n.dir.Lookup(directory.Contents, keys.Keys[j], n.o.Now())
			found[i] = f.Copies
		}
		return nil
	}
	answer, err := n.call(ctx, home, kindAnnounce, &claims)
	if err != nil {
		return err
	}
	var stale stales
	if err := decode(answer, &stale); err != nil {
		return err
	}
	refused := refusedOf(claims, stale)
	copies, err := copiesAt(ctx, n, home, &keys)
	if err != nil {
		return err
	}
	for j, i := range part {
		if !slices.ContainsFunc(refused, func(s directory.Statement) bool { return s.Name.Key == keys.Keys[j] }) {
			found[i] = copies[j]
		}
	}
	return nil
}

// Entrust has an owner keep names for bytes that it has in segments: of the statements, Name,
// Info and Version count. Versions, if there are any, are the least sequence numbers with which
// the names are to be recorded. It returns which it refused, by their places in the list. An
// error means that nothing is known of any.
func (n *Node) Entrust(ctx context.Context, owner fabric.Rank, list []directory.Statement) (refused []int, err error) {
	k := kindEntrust
	if slices.ContainsFunc(list, func(s directory.Statement) bool { return s.Version > 0 }) {
		k = kindGive
	}
	for start := 0; start < len(list); start += entrustNames {
		part := statements(list[start:min(len(list), start+entrustNames)])
		answer, err := n.call(ctx, owner, k, &part)
		if err != nil {
			return nil, err
		}
		var stale stales
		if err := decode(answer, &stale); err != nil {
			return nil, err
		}
		for i := range part {
			name := staleMessage{part[i].Name.Namespace, part[i].Name.Key, part[i].Name.Seq}
			if slices.Contains(stale, name) {
				refused = append(refused, start+i)
			}
		}
	}
	return refused, nil
}

// NamesOf asks an owner which names it has of a block: Namespace, Key and Seq count.
func (n *Node) NamesOf(ctx context.Context, owner fabric.Rank, id block.ID) ([]block.Name, error) {
	answer, err := n.call(ctx, owner, kindNames, &keysMessage{directory.Contents, []string{directory.ContentKey(id)}})
	if err != nil {
		return nil, err
	}
	var list stales
	if err := decode(answer, &list); err != nil {
		return nil, err
	}
	names := make([]block.Name, len(list))
	for i, one := range list {
		names[i] = block.Name{Namespace: one.Namespace, Key: one.Key, Seq: one.Before}
	}
	return names, nil
}

// entrustNames bounds the names of one message, whose keys and parents have up to
// block.MaxKey bytes each.
const entrustNames = 256
