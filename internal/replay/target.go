package replay

import (
	"context"
	"errors"
	"fmt"
)

// Errors of a replay. Test with errors.Is.
var (
	ErrBadOptions = errors.New("replay: cannot run")              // the message names the option
	ErrNoTrace    = errors.New("replay: the trace has no blocks") // nothing to measure
)

// Target is a cache to replay against. Its methods are safe for concurrent use.
type Target interface {
	// Session returns a session for one worker.
	Session(ctx context.Context) (Session, error)

	// Stats returns what the target is and holds.
	Stats(ctx context.Context) (TargetStats, error)

	// Close gives the target back, after all of its sessions.
	Close(ctx context.Context) error
}

// Session is one worker's use of a target; one goroutine uses it. keys are
// those of one request, head first. An error ends the replay; that a block is
// missing, or finds no room, is none.
type Session interface {
	// Probe returns how many leading keys are cached.
	Probe(ctx context.Context, keys []string) (hits int, err error)

	// GetBatch gets blocks and calls visit for each leading one that is
	// served; data is only read and only until visit returns. served is the
	// number of those calls.
	GetBatch(ctx context.Context, keys []string, visit func(i int, data []byte, tier string)) (served int, err error)

	// PutBatch stores the blocks of keys[first:], each after fill has written
	// it; keys[:first] are their ancestors. stored is less than the number of
	// blocks when the target had no room for the rest.
	PutBatch(ctx context.Context, keys []string, first int, fill func(i int, dst []byte)) (stored int, err error)

	// Close gives the session's memory or connection back.
	Close() error
}

// TargetStats is what a Result needs to know of a target.
type TargetStats struct {
	Policy          string   // of the fastest tier; "" if not known
	Tiers           []string // fastest first
	CapacityBytes   int64    // of the tiers that are bounded, together
	BytesReferenced int64    // Σ over names of their block's size
	BytesStored     int64    // Σ over distinct blocks
	OwnReferenced   int64    // of these, what counts once in the sum over ranks: see cascade.Stats
	OwnStored       int64
	LostRequests    int64 // that a rank of a group failed in
}

// appendKeys appends the keys of the blocks with these hash ids.
func appendKeys(keys []string, hashes []uint64) []string {
	for _, h := range hashes {
		keys = append(keys, fmt.Sprintf("%016x", h))
	}
	return keys
}
