package others

import (
	"context"
	"slices"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/dht/directory"
	"cascadekv/internal/block"
)

// leastAsk is how long other ranks have at least for an answer that is not needed.
const leastAsk = 5 * time.Millisecond

// PaysToAsk reports whether to ask other ranks for copies, in their memory, of so many bytes that
// the cold tier of this one has.
func (x *Exchange) PaysToAsk(bytes int64) bool {
	if x.Peers == nil || bytes == 0 {
		return false
	}
	odds := x.odds.Of(x.state.Age(x.state.Now()))
	return estimate.Pays(x.state.Cold.Line(), x.state.Remote.Line(), bytes, odds)
}

// AddNearer adds other ranks' memory to the copies of blocks that the catalogue alone has, of what was found of
// some keys, where it pays to ask for that.
func (x *Exchange) AddNearer(ctx context.Context, ns string, keys []string, found [][]directory.Statement) {
	var ask []string
	var infos []block.Info
	var at []int
	bytes := int64(0)
	for i, copies := range found {
		if copies != nil && FromCatalogue(copies) {
			ask, infos, at = append(ask, keys[i]), append(infos, copies[0].Info), append(at, i)
			bytes += copies[0].Info.Size
		}
	}
	if !x.PaysToAsk(bytes) {
		return
	}
	for j, nearer := range x.InMemory(ctx, ns, ask, infos) {
		found[at[j]] = append(nearer, found[at[j]]...)
	}
}

// InMemory returns which other ranks have blocks in memory that the cold tier of this one has, in
// parallel to keys by which they ask for them: nil for those of which no such rank is known. It
// waits no longer than the cold tier is expected to take, but leastAsk.
func (x *Exchange) InMemory(ctx context.Context, ns string, keys []string, infos []block.Info) [][]directory.Statement {
	bytes := int64(0)
	for i := range infos {
		bytes += infos[i].Size
	}
	ctx, cancel := context.WithTimeout(ctx, max(leastAsk, x.state.Cold.Line().Time(bytes)))
	defer cancel()
	found := make([][]directory.Statement, len(keys))
	x.askPeers(ctx, ns, keys, found, func(int) bool { return true })
	have := int64(0)
	for i := range found {
		found[i] = slices.DeleteFunc(found[i], func(s directory.Statement) bool { return s.Memory == nil || s.Info != infos[i] })
		if len(found[i]) == 0 {
			found[i] = nil
		} else {
			have += infos[i].Size
		}
	}
	x.odds.Note(x.state.Age(x.state.Now()), float64(have)/float64(max(bytes, 1)))
	return found
}
