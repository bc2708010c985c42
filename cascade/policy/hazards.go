package policy

import "math/bits"

// The table of hazards learns, for classes of blocks, how likely a block that was last
// used so long ago is to be used next.

// priorRequests is how many requests the class above speaks for in each class.
const priorRequests = 20

// mostCounted is how many requests a class counts for a bin: half of them are forgotten then,
// so that a load that changes is learned anew.
const mostCounted = 1 << 14

// estimateRounds is in how many requests each class is estimated anew once, and idleRounds in
// how many times as many if nothing was seen of it. blocksPerEstimate bounds that: requests of
// few blocks may use what others left of it, for as many estimates as there are classes.
const (
	estimateRounds    = 50
	idleRounds        = 4
	blocksPerEstimate = 4
)

// counts are what was seen of a class, for each bin of ages. Each block has the weight
// of one part of its request, so that a request has one vote however long it is.
type counts struct {
	reused  [ageBins]float64 // blocks that were used again at that age
	exposed [ageBins]float64 // blocks that reached that age, and were used in this bin or left it
}

// hazards are the counts of all classes and of what is above them, and what follows from
// them. The zero value has seen nothing.
type hazards struct {
	levels  [classLevels][]*counts // by digits of the class, the first level has one entry
	numbers []uint16               // dense numbers of the classes that were seen + 1, by class
	classes []*learner             // by number
	indexes [][ageBins]float32     // by number
	next    int                    // class that was estimated last
	round   int                    // how often all were
	spare   int                    // blocks of requests for which nothing was estimated
}

// learner is what is seen of a class: fresh has what it and the levels above have yet to
// count, so that each block costs one count and not one for each level.
type learner struct {
	class  class
	levels [classLevels]*counts
	fresh  counts
	seen   uint64 // bins of which fresh has something, one bit each
}

// number returns the dense number of a class. A new one is estimated at once.
func (h *hazards) number(c class) (n uint16, isNew bool) {
	if h.numbers == nil {
		for level := range h.levels {
			h.levels[level] = make([]*counts, classesAt(level))
		}
		h.numbers = make([]uint16, classesAt(classLevels-1))
	}
	if n := h.numbers[c]; n > 0 {
		return n - 1, false
	}
	l := learner{class: c}
	for level := range h.levels {
		of := &h.levels[level][c.at(level)]
		if *of == nil {
			*of = &counts{}
		}
		l.levels[level] = *of
	}
	n = uint16(len(h.classes))
	h.numbers[c] = n + 1
	h.classes = append(h.classes, &l)
	h.indexes = append(h.indexes, [ageBins]float32{})
	h.estimate(n)
	return n, true
}

// use records that a block is used again, in a bin: its share is one part in wholeRequest.
func (h *hazards) use(class uint16, bin uint8, share uint64) {
	l := h.classes[class]
	l.fresh.reused[bin] += float64(share) / wholeRequest
	l.expose(bin, share)
}

// pass records that blocks leave a bin, and those up to another one, unused.
func (h *hazards) pass(class uint16, from, to uint8, share uint64) {
	l := h.classes[class]
	for ; from < to; from++ {
		l.expose(from, share)
	}
}

func (l *learner) expose(bin uint8, share uint64) {
	l.fresh.exposed[bin] += float64(share) / wholeRequest
	l.seen |= 1 << bin
}

// learn has a class, and the levels above it, count what is fresh.
func (l *learner) learn() {
	for _, of := range l.levels {
		for left := l.seen; left > 0; left &= left - 1 {
			bin := bits.TrailingZeros64(left)
			of.reused[bin] += l.fresh.reused[bin]
			of.exposed[bin] += l.fresh.exposed[bin]
			if of.exposed[bin] > mostCounted {
				of.reused[bin] /= 2
				of.exposed[bin] /= 2
			}
		}
	}
	l.fresh, l.seen = counts{}, 0
}

// estimate computes the indexes of a class.
func (h *hazards) estimate(n uint16) {
	hazard := h.hazardsOf(n)
	gittins(&hazard, &h.indexes[n])
}

// hazardsOf computes the hazards of a class from what was seen of it and, as far as that is
// little, of the levels above.
func (h *hazards) hazardsOf(n uint16) (smoothed [ageBins]float64) {
	var hazard, reused, exposed [ageBins]float64
	for _, of := range h.classes[n].levels {
		smooth(&of.reused, &reused)
		smooth(&of.exposed, &exposed)
		for bin := range ageBins {
			hazard[bin] = (reused[bin] + priorRequests*hazard[bin]) / (exposed[bin] + priorRequests)
		}
	}
	smooth(&hazard, &smoothed)
	return smoothed
}

// smooth spreads a figure over the neighbours of each bin.
func smooth(all, into *[ageBins]float64) {
	before, here := all[0], all[0]
	for bin := range ageBins - 1 {
		after := all[bin+1]
		into[bin] = (before + 2*here + after) / 4
		before, here = here, after
	}
	into[ageBins-1] = (before + 3*here) / 4
}

// stretch is what it takes to keep a block for some bins.
type stretch struct {
	chance  float64 // that it is used
	seconds float64 // for which it is kept, until it is used or they end
	left    float64 // chance that it is not used
}

// gittins computes for each bin what keeping a block of that age is worth: the greatest,
// over all times to give up, of the chance that it is used until then by the seconds for
// which it is kept until it is used or given up. A block that is worth more later is kept
// until then, so a bin is taken together with those after it while they are worth more.
func gittins(hazard *[ageBins]float64, index *[ageBins]float32) {
	var later [ageBins]stretch // what follows, each worth more than the next
	n := 0
	for bin := ageBins - 1; bin >= 0; bin-- {
		h := hazard[bin]
		s := stretch{h, binWidths[bin] * (1 - h/2), 1 - h}
		for ; n > 0 && later[n-1].chance*s.seconds > s.chance*later[n-1].seconds; n-- {
			s.chance += s.left * later[n-1].chance
			s.seconds += s.left * later[n-1].seconds
			s.left *= later[n-1].left
		}
		later[n] = s
		n++
		index[bin] = float32(s.chance / s.seconds)
	}
}

// estimateSome estimates the next classes, after a request of so many blocks: all of them in
// estimateRounds calls, as far as blocksPerEstimate allows, and calls changed with each. One of
// which nothing was seen has its turn less often: what it borrows from the levels above changes
// slowly.
func (h *hazards) estimateSome(blocks int, changed func(number uint16, worth *[ageBins]float32)) {
	h.spare = min(h.spare+blocks, blocksPerEstimate*len(h.classes))
	turns := (len(h.classes) + estimateRounds - 1) / estimateRounds
	for ; turns > 0 && h.spare >= blocksPerEstimate; turns-- {
		if h.next++; h.next >= len(h.classes) {
			h.next = 0
			h.round++
		}
		n := uint16(h.next)
		switch l := h.classes[n]; {
		case l.seen > 0:
			l.learn()
		case (h.next+h.round)%idleRounds > 0:
			continue
		}
		h.spare -= blocksPerEstimate
		h.estimate(n)
		changed(n, &h.indexes[n])
	}
}
