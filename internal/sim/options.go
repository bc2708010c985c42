package sim

import (
	"errors"
	"fmt"
	"time"

	"cascadekv/dht/ring"
)

// Errors of Run. Test with errors.Is.
var (
	ErrOptions   = errors.New("sim: no such simulation")                           // caller's mistake
	ErrWrong     = errors.New("sim: wrong answers")                                // bytes or owners that were never published
	ErrUnknown   = errors.New("sim: names of living ranks are not found")          // after all ranks had settled
	ErrUnsettled = errors.New("sim: the directories do not settle as they should") // within Options.Patience
)

// MaxRanks bounds a simulation: the ranks know each other, so memory grows
// with their square.
const MaxRanks = 2048

// Options describe a simulation. The zero value of a field but Ranks means its
// default.
type Options struct {
	Ranks    int    // at the start, 3 to MaxRanks; one more joins, then one of the first dies
	Replicas int    // homes of a key; default 2
	Names    int    // for each rank on average; default 128
	Chain    int    // names in a chain; default 32
	Seed     uint64 // of names, owners and who asks for what

	// Patience bounds each phase: publishing, getting all, the join, the death.
	// Default 5 minutes.
	Patience time.Duration

	// Progress receives how far a phase is. It is called concurrently. May be nil.
	Progress func(phase string, done, total int)
}

func (o *Options) setDefaults() error {
	for _, f := range []struct {
		v   *int
		def int
	}{{&o.Replicas, 2}, {&o.Names, 128}, {&o.Chain, 32}} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	if o.Patience <= 0 {
		o.Patience = 5 * time.Minute
	}
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
	switch {
	case o.Ranks < 3 || o.Ranks > MaxRanks:
		return fmt.Errorf("%w: %d ranks; give 3 to %d", ErrOptions, o.Ranks, MaxRanks)
	case o.Replicas < 1 || o.Replicas > ring.MaxReplicas:
		return fmt.Errorf("%w: %d replicas; give 1 to %d", ErrOptions, o.Replicas, ring.MaxReplicas)
	case o.Names < 1 || o.Names > 1<<16:
		return fmt.Errorf("%w: %d names a rank; give 1 to %d", ErrOptions, o.Names, 1<<16)
	case o.Chain < 1 || o.Chain > 1<<10:
		return fmt.Errorf("%w: chains of %d names; give 1 to %d", ErrOptions, o.Chain, 1<<10)
	}
	return nil
}
