package codec

import (
	"slices"
	"sync"
)

// choice is how blocks of a stream are stored.
type choice struct {
	codec  Number
	effort Effort
}

// candidates are what a sample is tried with, from the cheapest to decode and
// encode to the dearest. A later one must save more.
var candidates = []choice{
	{Zstd, Huffman}, {Shuffle2, Huffman}, {Shuffle4, Huffman},
	{Zstd, Matches}, {Shuffle2, Matches}, {Shuffle4, Matches},
}

const (
	sampleRuns = 4
	sampleRun  = 4 << 10 // a multiple of every stride, and of huffmanFloor
	// dearer is how much more of the sample a later candidate must save: 1/64
	// among those of one effort; 1/16 for matches, which take four times as
	// long to find as Huffman codes do.
	dearerCodec   = 64
	dearerMatches = 16
)

// choose tries all candidates on a sample of src and returns the one that
// saves most, None if by the sample no one makes src fit into room.
func (w *worker) choose(src []byte, room int) (choice, error) {
	sample := w.sample(src)
	var best choice
	least := len(sample)
	for _, c := range candidates {
		if len(sample)%c.codec.planes() != 0 {
			continue
		}
		size, err := w.trySample(c, sample)
		if err != nil {
			return choice{}, err
		}
		margin := len(sample) / dearerCodec
		if c.effort != best.effort {
			margin = len(sample) / dearerMatches
		}
		if best.codec == None {
			margin = 0
		}
		if size < least-margin {
			best, least = c, size
		}
	}
	if float64(least)/float64(len(sample)) > float64(room)/float64(len(src)) {
		return choice{}, nil
	}
	return best, nil
}

// sample gathers runs spread evenly over src, the whole of it when it is
// short. K and V, and the first and the last layers of a block, all have a
// part in it.
func (w *worker) sample(src []byte) []byte {
	if len(src) <= sampleRuns*sampleRun {
		return src
	}
	out := w.hold[:0]
	for i := range sampleRuns {
		at := (len(src) - sampleRun) / (sampleRuns - 1) * i
		at -= at % 4 // values start at multiples of their size
		out = append(out, src[at:at+sampleRun]...)
	}
	return out
}

// trySample returns the length of the sample under a candidate. Each run
// counts for itself: together they would hide that one part of a block
// compresses and another does not.
func (w *worker) trySample(c choice, sample []byte) (total int, err error) {
	s := c.codec.planes()
	for run := range slices.Chunk(sample, sampleRun) {
		planes := w.planes[:len(run)]
		Shuffle(planes, run, s)
		for j := range s {
			plane := planes[j*len(run)/s : (j+1)*len(run)/s]
			out, err := w.frame(plane, c.effort)
			if err != nil {
				return 0, err
			}
			if out == nil {
				out = plane
			}
			total += len(out)
		}
	}
	return total, nil
}

// maxRun bounds how many blocks of a stream follow one sample.
const maxRun = 64

// slots is how many streams are remembered. Two that share a slot take turns
// in it and are sampled more often, which costs time and nothing else.
const slots = 256

// memory holds the decisions for streams.
type memory struct {
	slots [slots]slot
}

type slot struct {
	mu     sync.Mutex
	key    uint64
	choice choice
	run    int // blocks that followed, or follow, the last sample
	left   int // of these
	failed int // samples in a row whose block did not keep their promise
}

func (m *memory) slot(key uint64) *slot { return &m.slots[key%slots] }

// recall returns the decision for the next block of a stream, or that a sample
// is due.
func (m *memory) recall(key uint64) (c choice, sample bool) {
	s := m.slot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key != key || s.left == 0 {
		return choice{}, true
	}
	s.left--
	return s.choice, false
}

// decide records the outcome of a sample, and whether its block kept to it (None
// always does). Goroutines that sample blocks of one stream at the same time
// each record theirs.
func (m *memory) decide(key uint64, c choice, kept bool) {
	s := m.slot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key != key {
		s.key, s.choice, s.run, s.failed = key, choice{}, 0, 0
	}
	switch {
	case !kept:
		// Neither the sample nor the block decides: leave some blocks alone, and
		// more each time, for a failed encoding costs as much as a good one.
		s.failed++
		s.choice, s.run = choice{}, min(1<<min(s.failed, 30), maxRun)
	case s.run == 0 || c != s.choice:
		s.choice, s.run, s.failed = c, 1, 0
	default:
		s.run, s.failed = min(2*s.run, maxRun), 0
	}
	s.left = s.run
}

// disappoint makes the stream's next block be sampled: one that followed an
// earlier sample did not save what it should have.
func (m *memory) disappoint(key uint64) {
	s := m.slot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == key {
		s.run, s.left = 0, 0
	}
}

// hashStream is FNV-1a over 64 bits, and never 0, which an empty slot has.
func hashStream(stream string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(stream) {
		h = (h ^ uint64(stream[i])) * 1099511628211
	}
	return h | 1<<63
}
