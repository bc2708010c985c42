package policy

// Share is the state of a campaign from which a rank computes its share of the
// budget. All is in bytes but Runs and LiveShare.
type Share struct {
	Budget      int64   // this rank's part of the job's
	OthersUsage int64   // what live runs of other jobs take of it
	Runs        int     // of those
	Orphans     []int64 // what ended runs left that this rank may adopt, the oldest first
	Young       int64   // live blocks of this rank that came with or were used by this run
	LiveShare   float64 // part of what it may take that live blocks may
}

// A rank adopts when less than one part in spareLow of what it may take is spare
// for new blocks, and then until one in spareHigh is.
const (
	spareLow  = 16
	spareHigh = 8
)

// Available is what this rank's own blocks and those of ended runs may take. Live
// runs of other jobs have a right to an equal part each, and no more than they
// take.
func (s Share) Available() int64 {
	return max(s.Budget-s.OthersUsage, s.Budget/int64(1+s.Runs))
}

// Own is what this rank's own files may take of what is available. While there
// are orphans to adopt nothing that is young has to leave.
func (s Share) Own() int64 {
	if len(s.Orphans) == 0 {
		return s.Available()
	}
	return max(s.Available()-sum(s.Orphans), int64(float64(s.Young)/s.LiveShare))
}

// Adopt returns how many of Orphans, from the oldest on, to adopt now: their
// blocks are then ranked with this rank's own, before the young, in the order in
// which blocks leave. It is no more than new blocks require, for what is adopted
// takes memory.
func (s Share) Adopt() int {
	if s.Budget == 0 {
		return 0 // without a limit nothing has to leave
	}
	available := s.Available()
	left := sum(s.Orphans)
	spare := func() int64 { return int64(s.LiveShare*float64(available-left)) - s.Young }
	if spare() >= available/spareLow {
		return 0
	}
	n := 0
	for ; n < len(s.Orphans) && spare() < available/spareHigh; n++ {
		left -= s.Orphans[n]
	}
	return n
}

func sum(all []int64) (total int64) {
	for _, n := range all {
		total += n
	}
	return total
}
