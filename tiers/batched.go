package tiers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"cascadekv/internal/fault"
)

// Batched returns t as a BatchReader: itself where it is one, and else one that
// reads blocks with Pin.ReadInto, a few at once.
func Batched(t Tier) BatchReader {
	if b, ok := t.(BatchReader); ok {
		return b
	}
	return singly{}
}

// atOnce bounds the blocks that singly reads at once.
const atOnce = 16

// singly is the BatchReader of tiers that have no better way.
type singly struct{}

// ReadBatch implements BatchReader.
func (singly) ReadBatch(ctx context.Context, reads []Read) []error {
	errs := make([]error, len(reads))
	var next atomic.Int64
	work := func() {
		defer fault.Guard()()
		for i := next.Add(1) - 1; i < int64(len(reads)); i = next.Add(1) - 1 {
			errs[i] = reads[i].alone(ctx)
		}
	}
	var others sync.WaitGroup
	for range min(len(reads), atOnce) - 1 {
		others.Go(work)
	}
	work()
	others.Wait()
	return errs
}

func (r Read) alone(ctx context.Context) (err error) {
	if err = ctx.Err(); err != nil {
		err = fmt.Errorf("%w: read of %v was not begun: %w", ErrUnavailable, r.Pin.Info().ID, err)
	} else {
		err = r.Pin.ReadInto(ctx, r.Dst)
	}
	if r.Done != nil {
		r.Done(err)
	}
	return err
}
