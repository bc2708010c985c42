package names

import (
	"errors"
	"fmt"
)

// Verify counts everything anew that a graph keeps incrementally, and returns
// what differs. It is for tests: it takes as long as the graph is large.
func (g *Graph) Verify() error {
	var found []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			found = append(found, fmt.Errorf(format, args...))
		}
	}
	total, owners := Graph{}, map[*Block]bool{} // of names that are no copies
	for _, sp := range g.spaces {
		children := map[*Name]*Name{} // what a parent should count
		for _, n := range sp.byKey {
			if n.parent == nil {
				continue
			}
			p := children[n.parent]
			if p == nil {
				p = &Name{}
				children[n.parent] = p
			}
			p.children++
			if n.block == nil {
				continue
			}
			p.stored++
			for level := range Levels {
				if n.block.In(level) {
					p.resident[level]++
				}
			}
		}
		listed, referenced := 0, int64(0)
		for key, n := range sp.byKey {
			want := children[n]
			if want == nil {
				want = &Name{}
			}
			check(n.record.Key == key && n.space == sp, "name %q is filed under %q", n.record.Key, key)
			check(n.children == want.children && n.stored == want.stored && n.resident == want.resident,
				"name %q: children %d, stored %d, resident %v; want %d, %d, %v",
				key, n.children, n.stored, n.resident, want.children, want.stored, want.resident)
			check(n.block != nil || n.children > 0 && len(n.leases) == 0, "name %q stands for nothing", key)
			if n.block == nil {
				continue
			}
			listed++
			referenced += n.block.Info.Size
			total.bytes += n.cost()
			if !n.copied {
				total.own.Referenced += n.block.Info.Size
				owners[n.block] = true
			}
			check(n.index < len(sp.list) && sp.list[n.index] == n, "name %q is not in the list", key)
			check(n.nth < len(n.block.names) && n.block.names[n.nth] == n, "name %q is not among its block's", key)
			for i, l := range n.leases {
				check(l.name == n && l.nth == i && g.leases.leases[l.at[allLeases]] == l, "name %q: a lease of %q is misplaced", key, l.owner)
				check(!l.held || g.heldLeases.leases[l.at[heldLeases]] == l, "name %q: a held lease of %q is misplaced", key, l.owner)
			}
		}
		check(listed == len(sp.list) && referenced == sp.referenced, "namespace %q: %d names with %d bytes, counted %d with %d",
			sp.name, listed, referenced, len(sp.list), sp.referenced)
		total.names += listed
		total.referenced += referenced
	}
	for _, l := range g.heldLeases.leases {
		total.held += l.name.block.Info.Size
	}
	owned := 0
	for owner, l := range g.owned {
		for check(l.before == nil, "owner %q: not the newest lease", owner); l != nil; l = l.after {
			owned++
		}
	}
	check(owned == len(g.leases.leases), "%d leases, owners have %d", len(g.leases.leases), owned)
	check(total.names == g.names && total.bytes == g.bytes && total.referenced == g.referenced && total.held == g.held,
		"names %d, bytes %d, referenced %d, held %d; want %d, %d, %d, %d",
		g.names, g.bytes, g.referenced, g.held, total.names, total.bytes, total.referenced, total.held)
	for b := range owners {
		total.own.Stored += b.Info.Size
	}
	check(total.own == g.own, "own names are counted as %+v, want %+v", g.own, total.own)
	check(g.next == len(g.list), "%d changes are not applied", len(g.list)-g.next)
	return errors.Join(found...)
}

// Verify counts anew what b keeps of its names, and returns what differs.
func (b *Block) Verify() error {
	want := Block{}
	for _, n := range b.names {
		if n.block != b {
			return fmt.Errorf("name %q is of another block", n.record.Key)
		}
		want.add(&Name{record: n.record, stored: n.stored, leases: n.leases})
		if !n.copied {
			want.own++
		}
	}
	if want.nameStats != b.nameStats {
		return fmt.Errorf("block %v: its names are counted as %+v, want %+v", b.Info.ID, b.nameStats, want.nameStats)
	}
	return nil
}
