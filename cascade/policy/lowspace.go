package policy

import "time"

const (
	// shortPart is the part of what the cold tier takes for this rank, as one in so
	// many, that one step of a shortage gives up, and shortFloor that which no
	// shortage takes: room that this rank makes may be filled by others at once.
	shortPart  = 16
	shortFloor = 2

	// LowSpaceStep is the least time between two steps: file systems free space
	// long after files are gone.
	LowSpaceStep = 30 * time.Second

	// shortRest is how long the tier must not have refused anything for the
	// shortage to be over.
	shortRest = time.Minute
)

// LowSpace is a time in which the cold tier has no room, whatever the budget says.
// The zero value is a tier with room.
//
// What this rank takes when it begins, less a step, is its budget for as long as
// it lasts. While the tier goes on to refuse though that was done, there are more
// steps.
type LowSpace struct {
	limit   int64     // bytes, of what the tier takes for this rank; 0: there is room
	least   int64     // limit goes no lower
	step    int64     // bytes
	refused time.Time // the last time
	lowered time.Time // when limit was
	merged  bool      // since then all was merged that can be
	owed    bool      // a merge is to be asked for
	emptied int64     // bytes that the tier took when the last piece of it was emptied; 0: none was
	tried   time.Time // when that was
}

// Refuse notes that the tier, which takes used bytes for this rank, is full. It
// reports whether the limit is lower now. Where it is not, a piece of the tier may be
// due to be emptied.
func (h *LowSpace) Refuse(now time.Time, used int64) bool {
	h.refused = now
	switch {
	case h.limit == 0:
		h.step, h.least, h.limit = used/shortPart, max(used/shortFloor, 1), max(used, 1)
	case now.Sub(h.lowered) < LowSpaceStep, used > h.limit && !h.merged, h.limit == h.least:
		h.owed = h.owed || used > h.limit && now.Sub(h.tried) >= LowSpaceStep
		return false
	}
	h.limit = max(min(h.limit, used)-h.step, h.least)
	h.lowered, h.merged, h.owed, h.emptied = now, false, true, 0
	return true
}

// Accept notes that the tier, which takes used bytes, has taken blocks though there
// was no room: what could not be merged for want of it may be now.
func (h *LowSpace) Accept(now time.Time, used int64) {
	if now.Sub(h.refused) >= shortRest {
		*h = LowSpace{}
	}
	h.owed = h.owed || h.limit > 0 && used > h.limit
}

// Grow notes that so many bytes more are this rank's.
func (h *LowSpace) Grow(bytes int64) {
	if h.limit > 0 {
		h.limit += bytes
	}
}

// Evacuate reports whether a piece of the tier is to be emptied, as merging it does
// not do: while the tier takes more than it should, and at once again if the last
// time did help. What that made room for may have been filled since, so when it
// seems not to have helped there is a next time all the same, later.
func (h *LowSpace) Evacuate(now time.Time, used int64) bool {
	switch {
	case h.limit == 0, used <= h.limit, now.Sub(h.refused) >= shortRest:
		return false
	case h.emptied > 0 && used >= h.emptied && now.Sub(h.tried) < LowSpaceStep:
		return false
	}
	h.emptied, h.tried = used, now
	return true
}

// Limit is how many bytes the tier may take for this rank; 0 is no limit.
func (h *LowSpace) Limit() int64 { return h.limit }

// MergeDue reports whether a merge is to be asked for.
func (h *LowSpace) MergeDue() bool { return h.owed }

// MergeRequested records that a merge was asked for.
func (h *LowSpace) MergeRequested() { h.owed = false }

// Merged records that there is nothing to merge for the moment.
func (h *LowSpace) Merged() { h.merged = true }
