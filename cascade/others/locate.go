package others

import (
	"context"

	"cascadekv/cascade/names"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// AsksElsewhere reports whether what is not here may be elsewhere.
func (x *Exchange) AsksElsewhere() bool { return x.Peers != nil || x.HasParts.Load() }

// locate looks for keys in the catalogue, and asks the peers for the rest.
func (x *Exchange) locate(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := x.Catalogued(ns, keys)
	if x.Peers == nil {
		return found
	}
	var rest []string
	var at []int
	for i, copies := range found {
		if key, is := homeKey(ns, keys[i]); copies == nil && is {
			rest, at = append(rest, key), append(at, i)
		}
	}
	if len(rest) > 0 {
		for j, copies := range x.Peers.Locate(ctx, ns, rest) {
			if len(copies) > 0 && (ns != directory.Contents || directory.ContentKey(copies[0].Info.ID) == rest[j]) {
				found[at[j]] = copies
			}
		}
	}
	return found
}

// homeKey is what the homes of a key call it; false: it has none.
func homeKey(ns, key string) (string, bool) {
	if ns != directory.Contents {
		return key, true
	}
	id, ok := directory.ContentID(key)
	return directory.ContentKey(id), ok
}

// Located is locate without bound names whose parent is nowhere: those are not
// visible.
func (x *Exchange) Located(ctx context.Context, ns string, keys []string) [][]directory.Statement {
	found := x.locate(ctx, ns, keys)
	x.hideOrphans(ctx, ns, found, 1)
	return found
}

// hideOrphans takes bound names whose parent is nowhere out of what was found, which others
// are bound to, so many below one another.
func (x *Exchange) hideOrphans(ctx context.Context, ns string, found [][]directory.Statement, below int) {
	var bound []*block.Name
	var at []int
	for i, copies := range found {
		if copies != nil && copies[0].Name.Bound {
			bound, at = append(bound, &copies[0].Name), append(at, i)
		}
	}
	for i, is := range x.parentsVisible(ctx, ns, bound, below) {
		if !is {
			found[at[i]] = nil
		}
	}
}

// parentsVisible reports which of some bound names have a parent that is visible, on this
// rank or elsewhere.
func (x *Exchange) parentsVisible(ctx context.Context, ns string, bound []*block.Name, below int) []bool {
	are := make([]bool, len(bound))
	var parents []string
	var at []int
	for i, n := range bound {
		if are[i] = x.state.ContainsHere(ns, n.Parent); !are[i] {
			parents, at = append(parents, n.Parent), append(at, i)
		}
	}
	if len(parents) == 0 || below > names.MaxBound {
		return are
	}
	found := x.locate(ctx, ns, parents)
	x.hideOrphans(ctx, ns, found, below+1)
	for j, copies := range found {
		are[at[j]] = copies != nil
	}
	return are
}

// LocatedOne is Located for one key; nil where there is nothing to ask.
func (x *Exchange) LocatedOne(ctx context.Context, ns, key string) []directory.Statement {
	if !x.AsksElsewhere() {
		return nil
	}
	return x.Located(ctx, ns, []string{key})[0]
}

// ServedFrom names the tier that would serve a located block.
func (x *Exchange) ServedFrom(copies []directory.Statement) string {
	if copies[0].Memory != nil || x.state.Cold == nil {
		return residency.RemoteTier
	}
	return x.state.ColdName()
}
