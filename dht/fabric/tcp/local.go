package tcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/fault"
)

// localPiece is how much of a payload is copied between two looks at the
// deadline, in bytes.
const localPiece = 1 << 20

// ready waits for Serve and returns the handler.
func (f *Fabric) ready(ctx context.Context) (fabric.Handler, error) {
	select {
	case <-f.serving: // mostly: ctx need not be asked
		return f.handler, nil
	default:
	}
	select {
	case <-f.serving:
		return f.handler, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// quick is the handler, if Serve was called and it is one that answers quickly.
func (f *Fabric) quick() (fabric.QuickHandler, bool) {
	select {
	case <-f.serving:
		q, ok := f.handler.(fabric.QuickHandler)
		return q, ok
	default:
		return nil, false
	}
}

// callSelf calls the rank's own handler.
func (f *Fabric) callSelf(ctx context.Context, req []byte) ([]byte, error) {
	type result struct {
		answer []byte
		err    error
	}
	limited, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(f.ctx, stop)()
	done := make(chan result, 1)
	req = append([]byte(nil), req...) // the handler may outlast the call
	f.work.Add(1)
	go func() {
		defer fault.Guard()()
		defer f.work.Done()
		answer, err := f.answer(limited, f.options.Self, req)
		done <- result{answer, err}
	}()
	select {
	case r := <-done:
		if err := f.cause(ctx, nil); err != nil {
			return nil, err
		}
		if r.err != nil {
			return nil, &fabric.RemoteError{Peer: f.options.Self, Text: clip(r.err.Error())}
		}
		return r.answer, nil
	case <-limited.Done():
		return nil, f.cause(ctx, nil)
	}
}

// answer lets the handler answer.
func (f *Fabric) answer(ctx context.Context, from fabric.Rank, req []byte) ([]byte, error) {
	h, err := f.ready(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := h.Answer(ctx, from, req)
	if err == nil && len(answer) > fabric.MaxMessage {
		return nil, fmt.Errorf("the answer has %d bytes: %w", len(answer), fabric.ErrTooLarge)
	}
	return answer, err
}

// clip bounds an error's text.
func clip(text string) string { return text[:min(len(text), errorText)] }

// hold lets the handler pin src.
func (f *Fabric) hold(ctx context.Context, src fabric.Source) (fabric.Hold, error) {
	h, err := f.ready(ctx)
	if err != nil {
		return nil, err
	}
	hold, err := h.Hold(src)
	if err != nil {
		return nil, err
	}
	if n := len(hold.Bytes()); int64(n) != src.Length {
		hold.Release()
		return nil, fmt.Errorf("the handler holds %d bytes instead of %d", n, src.Length)
	}
	return hold, nil
}

// readSelf copies out of the rank's own region.
func (f *Fabric) readSelf(ctx context.Context, src fabric.Source, dst []byte) error {
	limited, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(f.ctx, stop)()
	hold, err := f.hold(limited, src)
	if cause := f.cause(ctx, nil); cause != nil {
		if err == nil {
			hold.Release()
		}
		return cause
	}
	if err != nil {
		if errors.Is(err, fabric.ErrStale) {
			return fabric.ErrStale
		}
		return &fabric.RemoteError{Peer: f.options.Self, Text: clip(err.Error())}
	}
	defer hold.Release()
	for bytes := hold.Bytes(); len(bytes) > 0; {
		n := copy(dst[:min(len(dst), localPiece)], bytes)
		bytes, dst = bytes[n:], dst[n:]
		if err := f.cause(ctx, nil); err != nil && len(bytes) > 0 {
			return err
		}
	}
	return nil
}

// left is the time to ctx's deadline, in nanoseconds, at least 1.
func left(ctx context.Context) uint64 {
	end, _ := ctx.Deadline()
	return uint64(max(1, time.Until(end)))
}

// grace is added to the time that a peer's frame grants, so that its deadline
// ends what it asked for and not ours.
const grace = time.Second

// limit is the time that a peer's frame grants, bounded.
func limit(nanoseconds uint64, most time.Duration) time.Duration {
	return time.Duration(min(nanoseconds, uint64(most)))
}
