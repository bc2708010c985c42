package policy

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Explanation is what a policy reports of a block.
type Explanation struct {
	Class  string        // in the policy's own words; "": there is only one
	Holds  int           // reasons for which the block may not leave now
	Idle   time.Duration // since its last use, or since a request asked for it; negative: not known
	Worth  float64       // chance that it is used, by the seconds to keep it for that; 0: the policy knows none
	Hazard float64       // chance that it is used before it is much older; likewise

	// Blocks and Bytes leave before the block once nothing holds it, if nothing else
	// happens and no other hold ends. Sampled: they are estimated.
	Blocks, Bytes int64
	Sampled       bool
}

// Explainer is a Policy that reports when a block leaves, and why then. Not all are: of some
// the order in which blocks leave is not known before they do.
type Explainer interface {
	Policy

	// Explain describes a block of the tier. Only Idle is as of now: the rest is as of the
	// policy's last event. False: there is no such block. It changes nothing, and takes a bounded
	// time however many blocks there are, about a millisecond.
	Explain(now time.Duration, n Node) (Explanation, bool)

	// Recall describes a block that is not in the tier, as far as it is remembered.
	Recall(now time.Duration, fingerprint uint64) (Explanation, bool)
}

// explainedBlocks bounds the blocks that Explain looks at. Of more it takes one in so many.
const explainedBlocks = 8 << 10

// stride is for how many elements of a slab sample takes one.
func (s *slab[T]) stride() int64 {
	return max(1, (int64(s.made)+explainedBlocks-1)/explainedBlocks)
}

// sample calls fn with some elements of a slab, and with n.
func (s *slab[T]) sample(n Node, fn func(Node, *T)) {
	for i := int64(0); i < int64(s.made); i += s.stride() {
		if Node(i) != n {
			fn(Node(i), s.at(uint32(i)))
		}
	}
	fn(n, s.at(uint32(n)))
}

// before adds up what comes before a block in the order in which blocks leave, of which
// there is one for each that many.
func (e *Explanation) before(n Node, order []Node, each int64, size func(Node) int64) {
	for _, one := range order {
		if one == n {
			break
		}
		e.Blocks += each
		e.Bytes += each * size(one)
	}
	e.Sampled = each > 1
}

const ofEarlierRun = "left by an earlier run"

// explain is Explain, with the words for a class, and the order in which the block and those
// without holds leave, of which queue has some.
func (r *Ranking) explain(n Node, class func(*ranked) string, order func(n Node, each int64) []Node) (Explanation, bool) {
	if !r.Known(n) {
		return Explanation{}, false
	}
	b := r.at(n)
	e := Explanation{Class: ofEarlierRun, Holds: int(b.holds), Idle: -1}
	if !r.old(n) {
		e.Class = class(b)
	}
	each := r.blocks.stride()
	e.before(n, order(n, each), each, func(one Node) int64 { return int64(r.at(one).size) })
	return e, true
}

// queue lists the blocks of a class without holds, and n, in the order of their keys.
func (r *Ranking) queue(class int, n Node) (list []Node) {
	r.blocks.sample(n, func(one Node, b *ranked) {
		if b.live && int(b.class) == class && (b.holds == 0 || one == n) {
			list = append(list, one)
		}
	})
	slices.SortFunc(list, func(a, b Node) int { return cmp.Compare(r.at(a).key, r.at(b).key) })
	return list
}

// byClass is the order of Ranking.Victim.
func (r *Ranking) byClass(n Node, _ int64) (order []Node) {
	for class := range Classes {
		order = append(order, r.queue(class, n)...)
	}
	return order
}

// Recall implements Explainer for those who remember nothing.
func (*Ranking) Recall(time.Duration, uint64) (Explanation, bool) { return Explanation{}, false }

func noClass(*ranked) string { return "" }

func usesOf(b *ranked) string { return number(int(b.uses), "use") }

// Explain implements Explainer.
func (l *lru) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return l.explain(n, noClass, l.byClass)
}

// Explain implements Explainer.
func (f *fifo) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return f.explain(n, noClass, f.byClass)
}

// Explain implements Explainer.
func (l *lfuda) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return l.explain(n, usesOf, l.byClass)
}

// Explain implements Explainer.
func (p *paper) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return p.explain(n, func(b *ranked) string {
		if b.class == priorityLow {
			return "low priority to leave: a prefix, or referenced more than once"
		}
		return "high priority to leave: referenced once, no prefix"
	}, p.byClass)
}

var arcClasses = [...]string{seenOnce: "seen once", seenMore: "seen more than once"}

// Explain implements Explainer.
func (a *arc) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return a.explain(n, func(b *ranked) string { return arcClasses[b.class] }, a.order)
}

// order is that of arc.Victim.
func (a *arc) order(n Node, each int64) []Node {
	once, left, i := a.queue(seenOnce, n), a.bytes[seenOnce], 0
	for ; i < len(once) && (a.old(once[i]) || left > a.target); i++ {
		left -= each * int64(a.at(once[i]).size)
	}
	return slices.Concat(once[:i], a.queue(seenMore, n), once[i:])
}

// Recall implements Explainer.
func (a *arc) Recall(_ time.Duration, fingerprint uint64) (Explanation, bool) {
	for class, words := range arcClasses {
		if a.left[class].find(fingerprint) != none {
			return Explanation{Class: words, Idle: -1}, true
		}
	}
	return Explanation{}, false
}

var s3fifoClasses = [...]string{small: "small queue", main: "main queue"}

// Explain implements Explainer.
func (s *s3fifo) Explain(_ time.Duration, n Node) (Explanation, bool) {
	return s.explain(n, func(b *ranked) string { return s3fifoClasses[b.class] + ", " + usesOf(b) }, s.order)
}

// order is that of s3fifo.Victim: what the small queue has above its part, of which some goes
// to the main one; what is in that, after as many rounds as it has uses; and the rest.
func (s *s3fifo) order(n Node, each int64) (order []Node) {
	queue, left, i := s.queue(small, n), s.bytes[small], 0
	rounds := s.queue(main, n)
	for ; i < len(queue) && (s.old(queue[i]) || left >= s.space()/smallPart); i++ {
		b := s.at(queue[i])
		left -= each * int64(b.size)
		if !s.old(queue[i]) && b.uses > 1 && b.key >= s.reached[small] {
			rounds = append(rounds, queue[i])
		} else {
			order = append(order, queue[i])
		}
	}
	slices.SortStableFunc(rounds, func(x, y Node) int { return cmp.Compare(s.rounds(x), s.rounds(y)) })
	return slices.Concat(order, rounds, queue[i:])
}

// rounds is how often a block passes through the main queue before it leaves.
func (s *s3fifo) rounds(n Node) uint8 {
	if b := s.at(n); b.class == main && b.key >= s.reached[main] {
		return b.uses
	}
	return 0
}

// Recall implements Explainer.
func (s *s3fifo) Recall(_ time.Duration, fingerprint uint64) (Explanation, bool) {
	return Explanation{Class: s3fifoClasses[small], Idle: -1}, s.left.find(fingerprint) != none
}

// Explain implements Explainer.
func (p *prefix) Explain(now time.Duration, n Node) (Explanation, bool) {
	if !p.tier.has(n) {
		return Explanation{}, false
	}
	e := p.describe(now, &p.tier.at(n).history)
	e.Holds = int(p.tier.at(n).holds)
	var order []Node
	p.tier.blocks.sample(n, func(one Node, b *leaf) {
		if b.resident && (b.holds == 0 || one == n) {
			order = append(order, one)
		}
	})
	cell := func(n Node) uint64 { return p.tier.key(p.tier.placeOf(&p.tier.at(n).history).cell()) }
	slices.SortFunc(order, func(a, b Node) int {
		return cmp.Or(cmp.Compare(cell(a), cell(b)), cmp.Compare(p.tier.lastUse(a), p.tier.lastUse(b)), cmp.Compare(a, b))
	})
	e.before(n, order, p.tier.blocks.stride(), func(one Node) int64 { return p.tier.at(one).size.bytes() })
	return e, true
}

// Recall implements Explainer.
func (p *prefix) Recall(now time.Duration, fingerprint uint64) (Explanation, bool) {
	if i := p.known.find(fingerprint); i != none {
		return p.describe(now, p.known.at(i)), true
	}
	return Explanation{}, false
}

// describe is what is known of a block, whether it is in the tier or not.
func (p *prefix) describe(now time.Duration, e *history) Explanation {
	if e.class == unaged {
		return Explanation{Class: ofEarlierRun, Idle: -1}
	}
	bin := p.tier.ages.bin(e.touched)
	x := Explanation{
		Class: p.learned.classes[e.class].class.String(), Idle: time.Duration(max(ticks(now), e.touched)-e.touched) * tick,
		Worth: float64(p.learned.indexes[e.class][bin]), Hazard: p.learned.hazardsOf(e.class)[bin],
	}
	if e.resident && p.tier.isFresh(e) {
		x.Class = "fresh; " + x.Class
	}
	return x
}

// String is the class in words.
func (c class) String() string {
	length, turn, gap, use := int(c)%lengthDigits, int(c)/lengthDigits%turnDigits, int(c)/below[2]%gapDigits, int(c)/below[1]
	var words []string
	switch {
	case use >= dueDigit:
		words = append(words, dueIn(gap*finerDigits+turn))
		use, gap, turn = sharedDigit, 0, use-dueDigit
	case use == sharedDigit:
		words = append(words, "1 use; marked as shared")
	case use > sharedDigit:
		words = append(words, "shared by "+powers(use-sharedDigit, dueDigit-sharedDigit-1, "conversation"))
	default:
		words = append(words, powers(use, sharedDigit-1, "use"))
	}
	switch gap {
	case 0:
	case 1:
		words = append(words, "less than 8 s between uses")
	case gapDigits - 1:
		words = append(words, "256 s or more between uses")
	default:
		words = append(words, fmt.Sprintf("%d to %d s between uses", 2<<gap, 4<<gap))
	}
	if turn == turnDigits-1 {
		words = append(words, "last block of its request")
	} else {
		words = append(words, "turn "+[...]string{"1", "2", "3", "4-5", "6-8", "9 or more", ""}[turn])
	}
	return strings.Join(append(words, "request of "+powers(length, lengthDigits-1, "block")), "; ")
}

// dueIn is when a block of a class is due, by the bin of that.
func dueIn(bin int) string {
	end := func(bin int) time.Duration {
		return time.Duration(firstBin * math.Pow(binFactor, float64(2*bin+1)) * float64(time.Second)).Round(100 * time.Millisecond)
	}
	switch bin {
	case 0:
		return fmt.Sprintf("due within %v", end(0))
	case dueBins - 1:
		return fmt.Sprintf("due after %v or more", end(bin-1))
	}
	return fmt.Sprintf("due after %v to %v", end(bin-1), end(bin))
}

// powers is the range of counts that have a logarithm, most at most.
func powers(log, most int, what string) string {
	switch {
	case log == 0:
		return number(1, what)
	case log == most:
		return fmt.Sprintf("%d or more %ss", 1<<log, what)
	}
	return fmt.Sprintf("%d-%d %ss", 1<<log, 2<<log-1, what)
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
