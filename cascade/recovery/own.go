package recovery

import (
	"slices"
	"time"

	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// ownStep is how many blocks, or names, the catalogue is asked for at once.
const ownStep = 1024

// restOnOwn finds which blocks that memory has lie in files of this rank too whose
// entries only the catalogue has: they are clean. It returns those that have names which
// the catalogue does not, and where they lie.
func (rc *Recoverer) restOnOwn(r *recovery) map[*residency.Block]*directory.Segment {
	cold := rc.state.Cold
	if cold == nil || len(cold.Files.Spilled()) == 0 {
		return nil
	}
	rc.state.Mu.Lock()
	cold.SpillLocked()
	for _, ns := range cold.Files.Catalogue().Namespaces() {
		rc.state.Mu.Names.AddSpace(ns)
	}
	var dirty []*residency.Block
	for _, b := range rc.state.Mu.Blocks {
		if b.InAny() && !b.HasLowerCopy() && !b.Info.ID.IsProvisional() {
			dirty = append(dirty, b)
		}
	}
	rc.state.Mu.Unlock()
	rc.outdate(r)
	resting := map[*residency.Block]*directory.Segment{}
	for len(dirty) > 0 {
		some := dirty[:min(len(dirty), ownStep)]
		dirty = dirty[len(some):]
		ids := make([]block.ID, len(some))
		for i, b := range some {
			ids[i] = b.Info.ID
		}
		for i, at := range cold.Own(ids...) {
			if at != nil {
				resting[some[i]] = at
			}
		}
	}
	unknown := rc.unknownNames(r, resting)
	for b, at := range resting {
		if !unknown[b] {
			b.From = at
			delete(resting, b)
		}
	}
	return resting
}

// outdate drops what memory has of names that were put, or withdrawn, later: an arena of
// an earlier run may be older than the files.
func (rc *Recoverer) outdate(r *recovery) {
	var ids []residency.NameID
	var names []block.Name
	for id, c := range r.names {
		if !c.dropped && !c.below {
			ids, names = append(ids, id), append(names, c.name)
		}
	}
	newer, err := rc.state.Cold.Files.Catalogue().Newer(names)
	if err != nil {
		return // of a broken one nothing is served either
	}
	for i, id := range ids {
		if newer[i] {
			r.stale = append(r.stale, r.names[id])
			delete(r.names, id)
		}
	}
}

// parentsAway returns the names, with their ends, that the catalogue alone has and to which names are bound that were
// found: else these were hidden.
func (rc *Recoverer) parentsAway(r *recovery) map[residency.NameID]time.Time {
	wanted := map[string][]string{} // by namespace
	for id, c := range r.names {
		if !c.dropped && c.name.Bound && r.names[residency.NameID{NS: id.NS, Key: c.name.Parent}].block == nil {
			wanted[id.NS] = append(wanted[id.NS], c.name.Parent)
		}
	}
	away := map[residency.NameID]time.Time{}
	if len(wanted) == 0 || !rc.state.Cold.Spilled() {
		return away
	}
	for ns, parents := range wanted {
		for some := range slices.Chunk(parents, ownStep) {
			for i, f := range rc.state.Cold.Files.Catalogue().Peek(ns, some) {
				id := residency.NameID{NS: ns, Key: some[i]}
				if !f.Info.ID.IsZero() && f.Name.Seq > r.names[id].name.Seq {
					away[id] = f.Name.Expires
				}
			}
		}
	}
	return away
}

// unknownNames returns which of some blocks have names that the catalogue does not.
func (rc *Recoverer) unknownNames(r *recovery, of map[*residency.Block]*directory.Segment) map[*residency.Block]bool {
	unknown := map[*residency.Block]bool{}
	spaces := map[string][]claim{}
	for _, c := range r.names {
		if of[c.block] != nil && !c.dropped {
			spaces[c.name.Namespace] = append(spaces[c.name.Namespace], c)
		}
	}
	for ns, claims := range spaces {
		for len(claims) > 0 {
			some := claims[:min(len(claims), ownStep)]
			claims = claims[len(some):]
			keys := make([]string, len(some))
			for i, c := range some {
				keys[i] = c.name.Key
			}
			for i, f := range rc.state.Cold.Files.Catalogue().Peek(ns, keys) {
				has := some[i].name
				if f.Info.ID != some[i].block.Info.ID || !f.Name.Expires.Equal(has.Expires) || f.Name.Prefix != has.Prefix {
					unknown[some[i].block] = true
				}
			}
		}
	}
	return unknown
}
