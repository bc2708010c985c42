package policy

// Recency remembers which blocks were used lately of those that no policy ranks, because
// nothing is kept of them in memory: cold blocks that are found in an index alone. It
// takes a bounded table whatever their number. It is pure and not safe for concurrent use;
// the zero value remembers nothing yet.
//
// A use sets two counters of the table, which hashes of the block choose, to the newest
// age, and all counters grow older by one as uses come. Both must be set for a block to
// count, and the older one counts: another block's use can make it younger than it is,
// never older. Of as many uses as are remembered, 14 in 100 blocks that were not used look
// as if they were.
type Recency struct {
	ages []uint8 // ages of the uses: Ages for the newest, 0 for none lately
	used int     // uses of the newest age
}

const (
	// Ages is how many ages there are.
	Ages = 15

	// recencyUses is how many uses make an age.
	recencyUses = 1 << 14

	// recencyCounters bounds the table, in bytes: about four for each use remembered.
	recencyCounters = 1 << 20
)

// Use records a use of a block, by a hash of what identifies it.
func (r *Recency) Use(fingerprint uint64) {
	if r.ages == nil {
		r.ages = make([]uint8, recencyCounters)
	}
	if r.used++; r.used > recencyUses {
		r.used = 1
		for i, age := range r.ages {
			if age > 0 {
				r.ages[i] = age - 1
			}
		}
	}
	a, b := countersOf(fingerprint)
	r.ages[a], r.ages[b] = Ages, Ages
}

// Last is the age of a block's last use: Ages for the newest, less for older ones; 0: it
// was not used lately.
func (r *Recency) Last(fingerprint uint64) uint8 {
	if r.ages == nil {
		return 0
	}
	a, b := countersOf(fingerprint)
	return min(r.ages[a], r.ages[b])
}

// countersOf returns the two counters of a block.
func countersOf(fingerprint uint64) (a, b uint64) {
	return fingerprint % recencyCounters, fingerprint >> 32 % recencyCounters
}
