package policy

import "math"

// history is what is remembered of a block, whether it is in the tier or not.
type history struct {
	touched  uint32 // tick of the last request that used it; of one without an age, how many of those came before it
	gap      uint32 // mean time between its uses, in ticks
	class    uint16 // its number; unaged until it is used
	length   uint16 // blocks of the last request
	touches  uint8  // requests that used it; saturates, as the next two do
	sessions uint8  // conversations that used it
	turn     uint8  // of its conversation, at the last request
	resident bool   // it is in the tier
}

// unaged is the class of a block that was not used yet. No class has that number.
const unaged = math.MaxUint16

// gapsCounted is how many gaps count for the mean: of more, each new one has one part in so many.
const gapsCounted = 10

// touch counts a use at a tick.
func (e *history) touch(now uint32) {
	if e.touches > 0 {
		gaps := min(int64(e.touches), gapsCounted)
		e.gap = uint32(int64(e.gap) + (int64(now-e.touched)-int64(e.gap))/gaps)
	}
	e.touches, e.touched = saturate8(int(e.touches)+1), now
}

// share is the part of its request that a block is, as sums of them are kept: so that nothing is left when all are taken out again.
func (e *history) share() uint64 { return uint64(wholeRequest / uint32(max(e.length, 1))) }

const wholeRequest = 1 << 31

// histories are those of ghosts: blocks that are not in the tier.
type histories struct {
	table[history]
	hand uint32 // number where the search for ghosts goes on
}

const (
	// ghostsPerBlock bounds the ghosts by the blocks that the tier has, and ghostBytes, which
	// is what one takes, together with ghostShare by its size: one part in so many.
	ghostsPerBlock = 16
	ghostBytes     = 32
	ghostShare     = 200

	// manyGhosts is how many ghosts a tier may have that has fewer than half as many blocks. One
	// with more may have two for each block, which take about as much as the block itself.
	manyGhosts = 1 << 20

	// ghostsCompared is among how many ghosts the one that is forgotten is the oldest.
	ghostsCompared = 2
)

// mostGhosts is how many ghosts there may be beside so many blocks, in a tier of so many bytes.
func mostGhosts(blocks int, bytes int64) int {
	return min(ghostsPerBlock*blocks, int(bytes/ghostShare/ghostBytes), max(manyGhosts, 2*blocks))
}

func newHistories() histories { return histories{table: newTable[history]()} }

// begin begins the history of a ghost.
func (h *histories) begin(print uint64) *history {
	e := h.at(h.add(print))
	*e = history{class: unaged}
	return e
}

// oldest finds a ghost to forget, the oldest of the next few; there is one, and all have been used.
func (h *histories) oldest() uint32 {
	oldest := h.next()
	for range ghostsCompared - 1 {
		if i := h.next(); h.at(i).touched < h.at(oldest).touched {
			oldest = i
		}
	}
	return oldest
}

// next finds the ghost with the next number.
func (h *histories) next() uint32 {
	for {
		if h.hand++; h.hand >= h.all.made {
			h.hand = 0
		}
		if h.at(h.hand).touches > 0 {
			return h.hand
		}
	}
}

func saturate8(n int) uint8     { return uint8(min(n, math.MaxUint8)) }
func saturate16(n int) uint16   { return uint16(min(n, math.MaxUint16)) }
func saturate32(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
