package others

import (
	"context"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
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
	var parents []string
	var halves []int
	for i, copies := range found {
		if copies == nil || !copies[0].Name.Bound || x.state.ContainsHere(ns, copies[0].Name.Parent) {
			continue
		}
		parents = append(parents, copies[0].Name.Parent)
		halves = append(halves, i)
	}
	if len(parents) == 0 {
		return found
	}
	for j, copies := range x.locate(ctx, ns, parents) {
		if copies == nil {
			found[halves[j]] = nil
		}
	}
	return found
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
