package load

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// readOfSegment finds room for a block whose place is others.SegmentOf, and returns
// how it is read together with others and what is done then. What does not come
// from the first place is looked for at all of them, by itself.
func (ld *Loader) readOfSegment(ctx context.Context, room *roomTime, f *Fetch) (tiers.Read, error) {
	a, err := ld.allocate(room, f.info.Size, f.keep, f.price)
	if err != nil {
		return tiers.Read{}, err
	}
	a.from = ld.state.Cold
	at := tiers.Segment(*others.SegmentOf(ld.state, f.copies))
	return tiers.Read{At: at, Info: f.info, Dst: a.bytes, Over: a.slot != nil, Done: func(err error) {
		if isOver(ctx, err) {
			ld.end(ended{f, a, err})
			return
		}
		ld.state.Workers.Go(func() { ld.runSegments(f, a) })
	}}, nil
}

// isOver reports whether a read that returned err was the last one for its block: it
// succeeded, or goes on by itself, or there is no time for another.
func isOver(ctx context.Context, err error) bool {
	return err == nil || residency.Lingers(err) || ctx.Err() != nil
}

// runSegments looks for a block at all places that it has in segments.
func (ld *Loader) runSegments(f *Fetch, a *readBuffer) {
	defer fault.Guard()()
	ctx, cancel := ld.state.UntilFetched(context.Background())
	defer cancel()
	e := ended{f, a, ld.readSegments(ctx, f.copies, a.bytes)}
	if isOver(ctx, e.err) {
		ld.end(e)
		return
	}
	if turnsAway(ld, f, e.err) {
		residency.AfterIO(e.err, a.abort)
		ld.runElsewhere([]*Fetch{f})
		return
	}
	ld.relocate(e)
}

// readSegments reads a block from the first of its copies in the shared file
// system that is there. Copies that are not are taken back.
func (ld *Loader) readSegments(ctx context.Context, copies []directory.Statement, dst []byte) error {
	if ld.state.Cold == nil {
		return fmt.Errorf("%w: no other rank has it in memory, and this one sees no segments", residency.ErrMiss)
	}
	err := fmt.Errorf("%w: no segment has it", residency.ErrMiss)
	for _, st := range copies {
		if st.Segment == nil || st.Info.ID.IsProvisional() {
			continue
		}
		at := tiers.Segment(*st.Segment)
		ld.state.Cold.Reads.Take(at.Stored)
		if err = ld.state.Cold.Files.ReadSegment(ctx, at, st.Info, dst); isOver(ctx, err) {
			return err
		}
		if errors.Is(err, tiers.ErrNotFound) || errors.Is(err, tiers.ErrCorrupt) {
			ld.state.Cold.Damaged.Add(at.Path, at.Offset)
			if others.IsCatalogued(st) {
				ld.others.LostSegment(ctx, &st, err)
				continue
			}
			st.Segment = nil
			ld.others.Peers.Invalidate(st)
		}
	}
	return err
}
