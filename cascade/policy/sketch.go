package policy

// sketch counts how often fingerprints were added, lately: a count-min sketch of small
// counters, which are halved as it fills. The zero value has seen nothing.
type sketch struct {
	words []uint64 // of 16 counters each
	added int
}

const (
	// wordBlocks is for how many blocks there is a word, and wordAdds after how many
	// additions for each all are halved: ten for each block.
	wordBlocks = 2
	wordAdds   = 10 * wordBlocks

	mostCount = 15
)

// grow makes room for so many blocks. Twice as many words are the old ones twice, for which
// of them is a matter of one more bit of the hash: each count stays what it is.
func (s *sketch) grow(blocks int) {
	if s.words == nil {
		s.words = make([]uint64, 1)
	}
	for len(s.words)*wordBlocks < blocks {
		s.words = append(s.words, s.words...)
	}
}

// add counts a fingerprint.
func (s *sketch) add(print uint64) {
	if s.words == nil {
		return
	}
	for row := range sketchRows {
		if word, shift := s.place(print, row); *word>>shift&mostCount < mostCount {
			*word += 1 << shift
		}
	}
	if s.added++; s.added >= wordAdds*len(s.words) {
		s.added = 0
		for i, word := range s.words {
			s.words[i] = word >> 1 & 0x7777777777777777
		}
	}
}

// count is how often a fingerprint was added, or more.
func (s *sketch) count(print uint64) uint64 {
	least := uint64(mostCount)
	for row := range sketchRows {
		word, shift := s.place(print, row)
		least = min(least, *word>>shift&mostCount)
	}
	return least
}

const sketchRows = 4

// place is where a row counts a fingerprint. It is the same in each run, for decisions
// depend on it.
func (s *sketch) place(print uint64, row int) (word *uint64, shift uint64) {
	print = (print + uint64(row)) * 0x9E3779B97F4A7C15
	print = (print ^ print>>29) * 0xBF58476D1CE4E5B9
	print ^= print >> 32
	return &s.words[print>>4%uint64(len(s.words))], print % 16 * 4
}
