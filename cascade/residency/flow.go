package residency

import (
	"context"
	"sync"
	"time"

	"cascadekv/cascade/policy"
)

// Flow bounds what is read from a level, or written to it, in bytes per second,
// by a policy.Bucket. It is safe for concurrent use, with State.Mu held or not.
type Flow struct {
	state *State
	rate  func(*Limits) int64 // nil: never a limit

	mu struct {
		sync.Mutex
		bucket policy.Bucket
	}
}

// Rate is the limit by now, 0 for none.
func (f *Flow) Rate() int64 {
	if f.rate == nil {
		return 0
	}
	return f.rate(f.state.Limits.Load())
}

// Take counts bytes.
func (f *Flow) Take(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.bucket.Take(f.state.Now(), f.Rate(), bytes)
}

// Return gives back bytes that were counted, and not moved.
func (f *Flow) Return(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.bucket.Return(f.state.Now(), f.Rate(), bytes)
}

// Left is how many bytes may be moved at once; 0 or less: none for now.
func (f *Flow) Left() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bucket.Left(f.state.Now(), f.Rate())
}

// Wait is how long what begins now would wait.
func (f *Flow) Wait() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bucket.Wait(f.state.Now(), f.Rate())
}

// Within counts bytes and waits its turn, if that is no longer than most; ErrOverBudget if
// it is. Other errors are those of ctx. What fails counts nothing.
func (f *Flow) Within(ctx context.Context, bytes int64, most time.Duration) error {
	f.mu.Lock()
	now, rate := f.state.Now(), f.Rate()
	wait := f.mu.bucket.Wait(now, rate)
	if wait <= most {
		f.mu.bucket.Take(now, rate, bytes)
	}
	f.mu.Unlock()
	switch {
	case wait == 0:
		return nil
	case wait > most:
		return ErrOverBudget
	}
	err := Sleep(ctx, wait)
	if err != nil {
		f.Return(bytes)
	}
	return err
}

// Due returns when there is a budget for what waits for one, nil if nothing does, or there is.
func (f *Flow) Due(waits bool) <-chan time.Time {
	wait := f.Wait()
	if wait == 0 || !waits {
		return nil
	}
	return time.After(min(wait, ColdRetry)) // the limit may be another by then
}

// Owe counts bytes that upkeep has moved, which requests do not wait for.
func (f *Flow) Owe(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.bucket.Owe(f.state.Now(), f.Rate(), bytes)
}

// Owes reports whether upkeep owes something still.
func (f *Flow) Owes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.bucket.Repaid(f.state.Now(), f.Rate()) > 0
}

// Sleep waits for d, or the end of ctx, whose error it returns.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
