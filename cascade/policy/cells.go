package policy

import "math"

// cell is the groups of a class in a bin of ages. All blocks of it are worth as much, and the one that was used longest ago leaves first.
type cell struct {
	worth  float32 // of its blocks; less leaves first
	at     uint32  // in order, none when it is empty or fresh
	listed uint32  // groups that are not empty, one bit each, by their places in the ring
}

// cellOf is the number of a cell.
func cellOf(class uint16, bin uint8) uint32 { return 1 + uint32(class)*ageBins + uint32(bin) }

// Blocks of the first bins leave last, the oldest first: they are of requests that are under way, which store one block after another.
// These are freshBins bins, which is a second, or less in a tier that turns over in a few seconds: one part in freshPart of that, or
// the first bin. Their cells are not in the order.
const (
	freshBins = 5
	freshPart = 4
)

// turnsOver takes in that the tier turns over in so many ticks.
func (l *leaves) turnsOver(in uint32) {
	fresh := uint8(1)
	for fresh < freshBins && binEnds[fresh] <= in/freshPart {
		fresh++
	}
	was := l.fresh
	l.fresh = fresh
	for bin := min(was, fresh); bin < max(was, fresh); bin++ {
		for class := range l.rings {
			switch number := cellOf(uint16(class), bin); {
			case l.cells[number].listed == 0:
			case fresh > was:
				l.hide(number)
			default:
				l.show(number)
			}
		}
	}
}

// setWorth changes what blocks of a class are worth in each bin.
func (l *leaves) setWorth(class uint16, worth *[ageBins]float32) {
	for int(class) >= len(l.rings) {
		l.rings = append(l.rings, new([ageBins]ring))
		for range ageBins {
			l.cells = append(l.cells, cell{at: none})
		}
	}
	for bin := range ageBins {
		number := cellOf(class, uint8(bin))
		c := &l.cells[number]
		if c.worth == worth[bin] {
			continue
		}
		if c.worth = worth[bin]; c.at != none {
			l.order[c.at].key = l.key(number)
			l.order.fix(c.at, l.noted)
		}
	}
}

// key is the order of cells; fresh ones are the last, and equal. While nothing is learned none is worth anything, and the oldest blocks
// leave first.
func (l *leaves) key(number uint32) uint64 {
	class, bin := (number-1)/ageBins, (number-1)%ageBins
	switch {
	case number == 0:
		return 0
	case bin < uint32(l.fresh):
		return math.MaxUint64
	}
	return uint64(math.Float32bits(l.cells[number].worth)+1)<<32 | uint64(ageBins-1-bin)<<16 | uint64(class)
}

// show enters a cell that has blocks into the order, hide takes one out.
func (l *leaves) show(number uint32) { l.order.push(slot{l.key(number), Node(number)}, l.noted) }

func (l *leaves) hide(number uint32) {
	l.order.drop(l.cells[number].at, l.noted)
	l.cells[number].at = none
}

// noted records in a cell where it is in the order.
func (l *leaves) noted(number Node, at uint32) { l.cells[number].at = at }
