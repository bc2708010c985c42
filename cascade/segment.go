package cascade

import (
	"context"
	"errors"
	"fmt"

	"cascadekv/dht/directory"
	"cascadekv/internal/fault"
	"cascadekv/tiers"
)

// segmentOfLocked tells other ranks where they find a block in the cold tier;
// nil when the tier is this rank's alone.
func (s *Store) segmentOfLocked(b *blockState) *directory.Segment {
	if s.cold == nil {
		return nil
	}
	at, err := s.cold.Segment(b.Info.ID)
	if err != nil {
		return nil // also when it left meanwhile, which is published too
	}
	said := directory.Segment(at)
	return &said
}

// onlyInSegment tells whether a block is in the shared file system and in no
// rank's memory.
func (s *Store) onlyInSegment(copies []directory.Statement) bool {
	st := copies[0] // one in memory would come before all others
	return s.cold != nil && st.Memory == nil && st.Segment != nil && !st.Info.ID.IsProvisional()
}

// readOfSegment finds room for a block that onlyInSegment is true of, and says
// how it is read together with others and what is done then. What does not come
// from the first place is looked for at all of them, by itself.
func (s *Store) readOfSegment(ctx, room context.Context, f *fetch) (tiers.Read, error) {
	a, err := s.arrivalRoom(room, f.info.Size, f.keep, f.price)
	if err != nil {
		return tiers.Read{}, err
	}
	a.tier = s.coldStats.Name
	at := tiers.Segment(*f.copies[0].Segment)
	return tiers.Read{At: at, Info: f.info, Dst: a.bytes, Over: a.slot != nil, Done: func(err error) {
		if err == nil || lingers(err) || ctx.Err() != nil {
			s.arrived(f, a, err)
			return
		}
		s.workers.Go(func() { s.runSegments(f, a) })
	}}, nil
}

// runSegments is runRemote once there is room, for what is in segments only.
func (s *Store) runSegments(f *fetch, a *arrival) {
	defer fault.Guard()()
	ctx, cancel := s.untilFetched(context.Background())
	defer cancel()
	s.arrived(f, a, s.readSegments(ctx, f.copies, a.bytes))
}

// readSegments reads a block from the first of its copies in the shared file
// system that is there. Copies that are not are taken back.
func (s *Store) readSegments(ctx context.Context, copies []directory.Statement, dst []byte) error {
	if s.cold == nil {
		return fmt.Errorf("%w: no other rank has it in memory, and this one sees no segments", ErrMiss)
	}
	err := fmt.Errorf("%w: no segment has it", ErrMiss)
	for _, st := range copies {
		if st.Segment == nil || st.Info.ID.IsProvisional() {
			continue
		}
		at := tiers.Segment(*st.Segment)
		if err = s.cold.ReadSegment(ctx, at, st.Info, dst); err == nil || lingers(err) || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, tiers.ErrNotFound) || errors.Is(err, tiers.ErrCorrupt) {
			if fromCatalogue(copies) {
				s.lostSegment(ctx, st.Info.ID, err)
				continue
			}
			st.Segment = nil
			s.peers.Invalidate(st)
		}
	}
	return err
}
