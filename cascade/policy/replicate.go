package policy

// Replicator decides which blocks of other ranks this rank keeps a copy of.
// A copy makes the next use here cheap and takes room from blocks that no other
// rank has, so only blocks that keep being asked for here are copied: hot
// prefixes replicate, cold ones do not. It is pure and not safe for concurrent
// use.
//
// It counts how often each block was read from elsewhere in a table of small
// counters that is halved as it fills (the aging of TinyLFU): what was hot an
// age ago counts half.
type Replicator struct {
	counts []uint8
	added  int
}

const (
	// replicateFrom is the read, within about one age, that makes a copy: the
	// first two readers of a block are its writer's next turn and one other.
	replicateFrom = 3

	// replicaCounters bounds the table: one byte for each block of a tier that
	// is likely to be asked for again. An age ends after as many reads.
	replicaCounters = 1 << 16
)

// NewReplicator returns a Replicator that has seen nothing.
func NewReplicator() *Replicator { return &Replicator{counts: make([]uint8, replicaCounters)} }

// Read counts a block read from another rank, by a hash of what identifies
// it, and returns whether to keep a copy.
func (r *Replicator) Read(fingerprint uint64) bool {
	c := &r.counts[fingerprint%replicaCounters]
	if *c < 255 {
		*c++
	}
	keep := *c >= replicateFrom
	if r.added++; r.added >= replicaCounters {
		r.added = 0
		for i := range r.counts {
			r.counts[i] /= 2
		}
	}
	return keep
}
