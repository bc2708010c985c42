package policy

import "time"

const (
	// stepPart is the part of what the cold tier takes for this rank, as one in so
	// many, that one step gives up, and floorPart the part that is kept however
	// many steps there are: others may take at once what this rank gives up.
	stepPart  = 16
	floorPart = 2

	// LowSpaceStep is the least time between two steps: file systems free space
	// long after files are gone.
	LowSpaceStep = 30 * time.Second

	// quietFor is how long the tier must not have refused anything for low-space
	// mode to end.
	quietFor = time.Minute
)

// LowSpace is the mode of a cold tier that refuses blocks for want of space, whatever
// its budget is. The zero value is a tier with space.
//
// What this rank takes when the mode is entered, less a step, is its budget until it
// ends. Each time that the tier refuses blocks though it keeps that budget, there is
// another step.
type LowSpace struct {
	limit   int64     // bytes, of what the tier takes for this rank; 0: there is space
	least   int64     // limit goes no lower
	step    int64     // bytes
	refused time.Time // the last time
	lowered time.Time // when limit was
	merged  bool      // since then all was merged that can be
	owed    bool      // a merge is to be asked for
	emptied int64     // bytes that the tier took when a segment was last evacuated; zero if none was
	tried   time.Time // when that was
}

// Refuse records that the tier, which takes used bytes for this rank, is full. It
// reports whether the limit is lower now. If it is not, a segment may be due to be
// evacuated.
func (h *LowSpace) Refuse(now time.Time, used int64) bool {
	h.refused = now
	switch {
	case h.limit == 0:
		h.step, h.least, h.limit = used/stepPart, max(used/floorPart, 1), max(used, 1)
	case now.Sub(h.lowered) < LowSpaceStep, used > h.limit && !h.merged, h.limit == h.least:
		h.owed = h.owed || used > h.limit && now.Sub(h.tried) >= LowSpaceStep
		return false
	}
	h.limit = max(min(h.limit, used)-h.step, h.least)
	h.lowered, h.merged, h.owed, h.emptied = now, false, true, 0
	return true
}

// Accept records that the tier, which takes used bytes, has taken blocks in low-space
// mode: what could not be merged for want of space may be now.
func (h *LowSpace) Accept(now time.Time, used int64) {
	if now.Sub(h.refused) >= quietFor {
		*h = LowSpace{}
	}
	h.owed = h.owed || h.Exceeds(used)
}

// Grow raises the limit by bytes that this rank has adopted.
func (h *LowSpace) Grow(bytes int64) {
	if h.limit > 0 {
		h.limit += bytes
	}
}

// Evacuate reports whether a segment is to be evacuated, for merging does not help:
// while the tier takes more than its limit, and at once again if the last evacuation
// freed space. If it seems not to have, others may have taken that space since, so
// there is another one all the same, later.
func (h *LowSpace) Evacuate(now time.Time, used int64) bool {
	switch {
	case !h.Exceeds(used), now.Sub(h.refused) >= quietFor:
		return false
	case h.emptied > 0 && used >= h.emptied && now.Sub(h.tried) < LowSpaceStep:
		return false
	}
	h.emptied, h.tried = used, now
	return true
}

// Exceeds reports whether the tier, which takes used bytes, takes more than its limit: what
// this rank has given up is to be merged.
func (h *LowSpace) Exceeds(used int64) bool { return h.limit > 0 && used > h.limit }

// Limit is how many bytes the tier may take for this rank; 0 is no limit.
func (h *LowSpace) Limit() int64 { return h.limit }

// MergeDue reports whether a merge is to be asked for.
func (h *LowSpace) MergeDue() bool { return h.owed }

// MergeRequested records that a merge was asked for.
func (h *LowSpace) MergeRequested() { h.owed = false }

// Merged records that there is nothing to merge for the moment.
func (h *LowSpace) Merged() { h.merged = true }
