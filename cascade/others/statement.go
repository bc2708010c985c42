package others

import (
	"cascadekv/cascade/residency"
	"cascadekv/dht/directory"
)

// segmentOfLocked returns where other ranks find a block in the cold tier;
// nil when the tier is this rank's alone.
func (x *Exchange) segmentOfLocked(b *residency.Block) *directory.Segment {
	if x.state.Cold == nil {
		return nil
	}
	at, err := x.state.Cold.Files.Segment(b.Info.ID)
	if err != nil {
		return nil // also when it left meanwhile, which is published too
	}
	segment := directory.Segment(at)
	return &segment
}
