package load

import (
	"context"
	"slices"

	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
)

// relocate ends fetches, all of one request, that did not find their blocks where these were
// located. An owner that merges files, or leaves bytes to another rank, states where they are
// by then, while the catalogue of this rank may still have them where they were. So what somebody
// waits for is located once more, with what was wrong taken back, and fetched from where it was
// not looked for yet.
func (ld *Loader) relocate(failed ...ended) {
	var ask, over []ended
	ld.state.Mu.Lock()
	for _, e := range failed {
		if e.f.block != nil || e.f.relocated || e.f.waiters == 0 {
			over = append(over, e)
			continue
		}
		e.f.relocated = true
		ask = append(ask, e)
	}
	ld.state.Mu.Unlock()
	for i := range ask {
		if e := &ask[i]; e.a != nil {
			residency.AfterIO(e.err, e.a.abort)
			e.a = nil
		}
	}
	if len(ask) > 0 {
		over = append(over, relocateSome(ld, ask)...)
	}
	ld.end(over...)
}

// relocateSome starts those fetches anew whose blocks are elsewhere, and returns the others.
func relocateSome(ld *Loader, ask []ended) (over []ended) {
	ctx, cancel := ld.state.UntilFetched(context.Background())
	defer cancel()
	keys := make([]string, len(ask))
	for i, e := range ask {
		keys[i] = e.f.name.Key
	}
	found := ld.others.Located(ctx, ask[0].f.name.NS, keys)
	var fresh []*Fetch
	ld.state.Mu.Lock()
	defer ld.state.Mu.Unlock()
	for i, e := range ask {
		copies := slices.DeleteFunc(found[i], e.f.triedLocked)
		if len(copies) == 0 || ld.state.Mu.Closed || others.OutdatedLocked(ld.others, copies) {
			over = append(over, e)
			continue
		}
		e.f.copies, e.f.info, e.f.failed = copies, copies[0].Info, nil
		fresh = append(fresh, e.f)
	}
	ld.StartLocked(fresh)
	return over
}

// triedLocked reports whether a copy is one of those where the block is not.
func (f *Fetch) triedLocked(c directory.Statement) bool {
	return slices.ContainsFunc(f.copies, func(t directory.Statement) bool {
		stated := c.Version > 0 || t.Segment != nil && c.Segment != nil && *t.Segment == *c.Segment
		return c.Owner == t.Owner && c.Incarnation == t.Incarnation && c.Version == t.Version && stated
	})
}
