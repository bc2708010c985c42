package kit

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Parallel calls fn for 0 to n-1 from so many goroutines at once and returns how
// long all of it took. A caller stops at its first error.
func Parallel(callers, n int, fn func(caller, i int) error) (time.Duration, error) {
	var next atomic.Int64
	failed := make([]error, callers)
	var all sync.WaitGroup
	began := time.Now()
	for c := range callers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed[c] == nil; i = int(next.Add(1)) - 1 {
				failed[c] = fn(c, i)
			}
		})
	}
	all.Wait()
	return time.Since(began), errors.Join(failed...)
}
