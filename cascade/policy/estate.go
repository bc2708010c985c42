package policy

// Estate is what a rank knows of the campaign when it decides how to keep a
// budget that others share. All is in bytes but Runs and Fill.
type Estate struct {
	Budget int64   // this rank's part of the job's
	Beside int64   // what live runs of other jobs take of it
	Runs   int     // of those
	Left   []int64 // what ended runs left that is this rank's to give up, the oldest first
	Young  int64   // live blocks of this rank that came with or were used by this run
	Fill   float64 // share of its room that live blocks may take
}

// A rank inherits when less than one part in spareLow of its room is spare for
// new blocks, and then until one in spareHigh is.
const (
	spareLow  = 16
	spareHigh = 8
)

// Room is what this rank's own blocks and those of ended runs may take. Runs of
// other jobs that live have a right to an equal part each, and no more than they
// take.
func (e Estate) Room() int64 {
	return max(e.Budget-e.Beside, e.Budget/int64(1+e.Runs))
}

// Own is what this rank's own files may take of the room. While there is
// something to inherit nothing that is young has to leave.
func (e Estate) Own() int64 {
	if len(e.Left) == 0 {
		return e.Room()
	}
	return max(e.Room()-sum(e.Left), int64(float64(e.Young)/e.Fill))
}

// Take is how many of Left, from the oldest on, to inherit now: their blocks
// then stand with this rank's own, before the young, in the order in which blocks
// leave. It is no more than new blocks need, for what is inherited takes memory.
func (e Estate) Take() int {
	if e.Budget == 0 {
		return 0 // without a limit nothing has to leave
	}
	room := e.Room()
	rest := sum(e.Left)
	spare := func() int64 { return int64(e.Fill*float64(room-rest)) - e.Young }
	if spare() >= room/spareLow {
		return 0
	}
	n := 0
	for ; n < len(e.Left) && spare() < room/spareHigh; n++ {
		rest -= e.Left[n]
	}
	return n
}

func sum(all []int64) (total int64) {
	for _, n := range all {
		total += n
	}
	return total
}
