package cascade

import (
	"context"
	"fmt"

	"cascadekv/cascade/layouts"
	"cascadekv/cascade/others"
	"cascadekv/cascade/sharedindex"
	"cascadekv/tiers"
)

// Adopt adopts what another run of some rank left in the cold tier: its blocks
// are hits from then on, here and, once published, on other ranks. A
// name that is newer here stays as it is. With a budget for the cold tier its files
// become this rank's own if nobody owns them. Adopting twice does nothing.
func (s *Store) Adopt(ctx context.Context, p tiers.Part) (RecoverStats, error) {
	if s.state.Cold == nil {
		return RecoverStats{}, others.ErrNotShared
	}
	if s.state.Limits.Load().ColdBytes > 0 {
		if done, inherited, err := s.space.AdoptOrphan(ctx, p); inherited || err != nil {
			return done, err
		}
	}
	a := s.others.NewAdoption()
	if err := s.state.Cold.Files.Adopt(ctx, p, a.Gather); err != nil {
		return RecoverStats{}, fmt.Errorf("cascade: adopt the part %d of rank %d: %w", p.Incarnation, p.Rank, err)
	}
	err := a.Run()
	if s.others.Catalogue == nil { // else its rounds do
		s.space.SetOrphans(nil, nil)
	}
	return a.Done, err
}

// Parts lists what runs of this and other ranks left in the cold tier, or are
// writing to it. Nil where ranks do not share it.
func (s *Store) Parts(ctx context.Context) ([]tiers.Part, error) { return s.others.Parts(ctx) }

// Catalogue reports whether there is one, so that parts are adopted by AdoptParts and
// not, one by one, by Adopt; and why what others left is not found until the next
// AdoptParts, nil when it is.
func (s *Store) Catalogue() (has bool, err error) {
	if s.others.Catalogue == nil {
		return false, nil
	}
	return true, s.others.Catalogue.Err()
}

// Layouts is how the blocks of each namespace are made.
func (s *Store) Layouts() *layouts.Book { return s.layouts }

// SharedIndex is what clients look names up in by themselves.
func (s *Store) SharedIndex() *sharedindex.Index { return s.index }
