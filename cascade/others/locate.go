package others

import (
	"context"
	"strings"

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
	x.askPeers(ctx, ns, keys, found, func(i int) bool { return found[i] == nil })
	return found
}

// askPeers asks the peers, if there are any, for those keys for which want is true, and adds
// what they have to found.
func (x *Exchange) askPeers(ctx context.Context, ns string, keys []string, found [][]directory.Statement, want func(i int) bool) {
	if x.Peers == nil {
		return
	}
	var rest []string
	var at []int
	for i := range keys {
		if key, is := homeKey(ns, keys[i]); is && want(i) {
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
}

// homeKey is what the homes of a key call it; false: it has none.
func homeKey(ns, key string) (string, bool) {
	if ns != directory.Contents {
		return key, block.IsName(ns, key)
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

// Hit is a key that Probe found. The zero value is a miss.
type Hit struct {
	Found  bool
	Size   int64                 // of its block, in bytes
	Copies []directory.Statement // nil: the catalogue has it
}

// Probe is Located for those who ask whether blocks are there: the places of those that the
// catalogue has are not read, which costs more than to find them. The keys are only read.
func (x *Exchange) Probe(ctx context.Context, ns string, keys []string) []Hit {
	hits := make([]Hit, len(keys))
	var found [][]directory.Statement
	switch {
	case ns == directory.Contents || x.probeCatalogue(ns, keys, hits): // whether a bound name is there takes its parent
		clear(hits)
		found = x.Located(ctx, ns, clones(keys))
	case x.Peers != nil:
		found = make([][]directory.Statement, len(keys))
		x.askPeers(ctx, ns, clones(keys), found, func(i int) bool { return !hits[i].Found })
		x.hideOrphans(ctx, ns, found, 1)
	}
	for i, copies := range found {
		if copies != nil {
			hits[i] = Hit{Found: true, Size: copies[0].Info.Size, Copies: copies}
		}
	}
	return hits
}

// clones copies keys, which may be parts of a request: peers keep what they are asked for.
func clones(keys []string) []string {
	own := make([]string, len(keys))
	for i, k := range keys {
		own[i] = strings.Clone(k)
	}
	return own
}

// LocatedOne is Located for one key; nil where there is nothing to ask.
func (x *Exchange) LocatedOne(ctx context.Context, ns, key string) []directory.Statement {
	if !x.AsksElsewhere() {
		return nil
	}
	return x.Located(ctx, ns, []string{key})[0]
}

// ServedFrom names a tier that would serve a located block.
func (x *Exchange) ServedFrom(copies []directory.Statement) string {
	if memory, _ := x.MayRead(copies); memory {
		return residency.RemoteTier
	}
	return x.state.ColdName()
}

// MayRead reports whether a located block can be read from other ranks' memory, and from files that
// this rank sees; without copies it is one that the catalogue has.
func (x *Exchange) MayRead(copies []directory.Statement) (memory, files bool) {
	if copies == nil {
		return false, true
	}
	files = SegmentOf(x.state, copies) != nil
	return copies[0].Memory != nil || !files, files // one in memory comes before all others
}

// SegmentOf is where a block is in the shared file system; nil: nowhere that this rank sees.
func SegmentOf(s *residency.State, copies []directory.Statement) *directory.Segment {
	for i := range copies {
		if st := &copies[i]; s.Cold != nil && st.Segment != nil && !st.Info.ID.IsProvisional() {
			return st.Segment
		}
	}
	return nil
}
