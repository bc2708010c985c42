package cascade

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/dht/directory"
	"cascadekv/tiers"
)

// segmentOf tells other ranks where they find a block in the cold tier; nil
// when the tier is this rank's alone. The caller holds the mutex.
func (s *Store) segmentOf(b *entity) *directory.Segment {
	shared, ok := s.cold.(tiers.Segmented)
	if !ok {
		return nil
	}
	at, err := shared.Segment(b.info.ID)
	if err != nil {
		return nil // it left meanwhile, which is told too
	}
	return &directory.Segment{Path: at.Path, Base: at.Base, Record: at.Record}
}

// readSegments reads a block from the first of its copies in the shared file
// system that is there. Copies that are not are taken back.
func (s *Store) readSegments(ctx context.Context, copies []directory.Statement, dst []byte) error {
	shared, ok := s.cold.(tiers.Segmented)
	if !ok {
		return fmt.Errorf("%w: no other rank has it in memory, and this one sees no segments", ErrMiss)
	}
	err := fmt.Errorf("%w: no segment has it", ErrMiss)
	for _, st := range copies {
		if st.Segment == nil || st.Info.ID.IsProvisional() {
			continue
		}
		at := tiers.Segment{Path: st.Segment.Path, Base: st.Segment.Base, Record: st.Segment.Record}
		if err = shared.ReadSegment(ctx, at, st.Info, dst); err == nil || lingers(err) || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, tiers.ErrNotFound) || errors.Is(err, tiers.ErrCorrupt) {
			if fromCatalogue(copies) {
				s.lostSegment(ctx, st.Info.ID, err)
				continue
			}
			st.Segment = nil
			s.peers.Refute(st)
		}
	}
	return err
}
