package policy

import "math"

// history is what is remembered of a block, whether it is in the tier or not.
type history struct {
	touched      uint32 // tick of the last request that used it
	older, newer uint32 // neighbours by that
	node         Node   // NoNode of a ghost: a block that is not in the tier
	class        uint16 // its number
	length       uint16 // blocks of the last request
	touches      uint8  // requests that used it; saturates, as the next two do
	sessions     uint8  // conversations that used it
	turn         uint8  // of its conversation, at the last request
	bin          uint8  // of its age
}

// histories are the blocks that are known, in the order of their last use. The heads of the
// bins divide that order by age, so that a block changes its bin without being moved.
type histories struct {
	table[history]

	oldest, newest uint32
	heads          [ageBins]uint32 // the oldest of this bin or a younger one
	ghosts         int
	hand           uint32 // number where the search for ghosts goes on

	aged   uint32            // tick of the last call of age
	behind bool              // it had no time for all
	due    [ageBins][]uint32 // by bin, what findDue listed in that call
}

const (
	// ghostsPerBlock bounds the ghosts by the blocks that the tier has, and ghostBytes, which
	// is what one takes, together with ghostShare by its size: one part in so many.
	ghostsPerBlock = 16
	ghostBytes     = 40
	ghostShare     = 200

	// manyGhosts is how many ghosts a tier may have that has fewer than half as many blocks. One
	// with more may have two for each block, which take about as much as the block itself.
	manyGhosts = 1 << 20

	// ghostsCompared is among how many ghosts the one that is forgotten is the oldest.
	ghostsCompared = 2

	// mostDue bounds what findDue lists, however many a call may move. fetchedAtOnce is how many
	// of those are fetched at a time: enough to be waited for together, few enough to stay in the
	// processor's caches until they are moved.
	mostDue       = 1 << 12
	fetchedAtOnce = 32
)

// mostGhosts is how many ghosts there may be beside so many blocks, in a tier of so many bytes.
func mostGhosts(blocks int, bytes int64) int {
	return min(ghostsPerBlock*blocks, int(bytes/ghostShare/ghostBytes), max(manyGhosts, 2*blocks))
}

func newHistories() histories {
	h := histories{table: newTable[history](), oldest: none, newest: none}
	for i := range h.heads {
		h.heads[i] = none
	}
	return h
}

// begin begins the history of a ghost. It has no age until it is touched.
func (h *histories) begin(print uint64) uint32 {
	i := h.add(print)
	*h.at(i) = history{older: none, newer: none, node: NoNode, bin: unknownAge}
	h.ghosts++
	return i
}

// forget ends the history of a ghost.
func (h *histories) forget(i uint32) {
	h.unlink(i)
	h.remove(i)
	h.ghosts--
}

// enter notes that a ghost is in the tier, leave that it is not any more.
func (h *histories) enter(i uint32, n Node) {
	h.at(i).node = n
	h.ghosts--
}

func (h *histories) leave(i uint32) {
	h.at(i).node = NoNode
	h.ghosts++
}

// retire makes a history as if it had never been touched: of a block that was old when it
// came, and after how many others of those.
func (h *histories) retire(i, after uint32) {
	h.unlink(i)
	e := h.at(i)
	e.touched, e.touches, e.sessions = after, 0, 0
}

// touch makes a history the newest, as of a tick that never goes back.
func (h *histories) touch(i, now uint32) {
	h.unlink(i)
	e := h.at(i)
	e.touched, e.bin, e.older = now, 0, h.newest
	if h.newest == none {
		h.oldest = i
	} else {
		h.at(h.newest).newer = i
	}
	h.newest = i
	for bin := 0; bin < ageBins && h.heads[bin] == none; bin++ {
		h.heads[bin] = i
	}
}

// unlink takes a history out of the order, if it is there.
func (h *histories) unlink(i uint32) {
	e := h.at(i)
	if e.bin == unknownAge {
		return
	}
	for bin := int(e.bin); bin < ageBins && h.heads[bin] == i; bin++ {
		h.heads[bin] = e.newer
	}
	if e.older == none {
		h.oldest = e.newer
	} else {
		h.at(e.older).newer = e.newer
	}
	if e.newer == none {
		h.newest = e.older
	} else {
		h.at(e.newer).older = e.older
	}
	e.older, e.newer, e.bin = none, none, unknownAge
}

// age calls moves for histories that are too old for their bins, before they are in those of
// their ages: the oldest bins first, and for no more than so many histories, so that no call
// takes long; the others are still due in the next one. Before it moves histories that findDue has
// listed it calls fetch with them, which may overwrite the list.
func (h *histories) age(now uint32, most int, fetch func(due []uint32), moves func(i uint32, bin uint8)) {
	if now == h.aged && !h.behind {
		return
	}
	h.aged, h.behind = now, true
	h.findDue(min(most, mostDue))
	for from := ageBins - 2; from >= 0; from-- {
		due := h.due[from]
		for ; h.isDue(h.heads[from], from); most-- {
			if most == 0 {
				return
			}
			i := h.heads[from]
			if len(due) > 0 && due[0] == i {
				fetched := min(len(due), fetchedAtOnce)
				fetch(due[:fetched])
				due = due[fetched:]
			}
			h.advance(i, now, moves)
		}
	}
	h.behind = false
}

// isDue reports whether a history is too old for a bin, and in that.
func (h *histories) isDue(i uint32, bin int) bool {
	return i != none && int(h.at(i).bin) == bin && h.aged-h.at(i).touched >= binEnds[bin]
}

// findDue lists, for each bin, histories that are due, the oldest first, but no more than about so many.
// A block that was asked for by itself is next to others that lie anywhere in memory: to wait for
// that takes longer than to move it. Within a bin one has to be read to find the next, but bins do
// not depend on each other: with one of each in turn the processor waits for many at a time. Blocks
// of one request mostly lie side by side, which it reads ahead by itself: a bin's list ends there.
func (h *histories) findDue(most int) {
	next := h.heads
	for bin := range h.due {
		h.due[bin] = h.due[bin][:0]
	}
	for found := 1; found > 0 && most > 0; most -= found {
		found = 0
		for bin := range ageBins - 1 {
			i := next[bin]
			next[bin] = none
			if !h.isDue(i, bin) {
				continue
			}
			if newer := h.at(i).newer; newer != i-1 && newer != i+1 {
				next[bin], h.due[bin] = newer, append(h.due[bin], i)
				found++
			}
		}
	}
}

// advance moves the oldest of a bin to the one of its age. Blocks that are older have been
// moved.
func (h *histories) advance(i, now uint32, moves func(i uint32, bin uint8)) {
	e := h.at(i)
	bin := e.bin
	for ; bin < ageBins-1 && now-e.touched >= binEnds[bin]; bin++ {
		h.heads[bin] = e.newer
	}
	moves(i, bin)
	e.bin = bin
}

// trim forgets ghosts while there are more than most: always the oldest of the next few.
func (h *histories) trim(most int) {
	for h.ghosts > most {
		oldest := h.nextGhost()
		for range ghostsCompared - 1 {
			if i := h.nextGhost(); h.at(i).touched < h.at(oldest).touched {
				oldest = i
			}
		}
		h.forget(oldest)
	}
}

// nextGhost finds the ghost with the next number; there is one.
func (h *histories) nextGhost() uint32 {
	for {
		if h.hand++; h.hand >= h.all.made {
			h.hand = 0
		}
		if h.at(h.hand).node == NoNode {
			return h.hand
		}
	}
}

func saturate8(n int) uint8     { return uint8(min(n, math.MaxUint8)) }
func saturate16(n int) uint16   { return uint16(min(n, math.MaxUint16)) }
func saturate32(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
