package vfs

import "context"

// Within returns what fn does, which may wait for a file system that hangs. If ctx ends first it is late, with the cause of that as error, and
// drop is called with what fn returns without an error once it does.
func Within[T any](ctx context.Context, fn func() (T, error), drop func(T)) (v T, late bool, err error) {
	type result struct {
		v   T
		err error
	}
	out := make(chan result)
	go func() {
		var r result
		r.v, r.err = fn()
		select {
		case out <- r:
		case <-ctx.Done():
			if r.err == nil {
				drop(r.v)
			}
		}
	}()
	select {
	case r := <-out:
		return r.v, false, r.err
	case <-ctx.Done():
		return v, true, context.Cause(ctx)
	}
}
