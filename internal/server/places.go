package server

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// places counts the goroutines that keep their place in Go's scheduler (their
// P) while they sleep in the kernel. A wait that the scheduler is told of costs
// more than itself where it takes some microseconds only: the runtime's monitor
// looks every 20 µs for places to take away, and who lost its own finds another
// on another thread. Nobody else can use a place that is kept, so no more than
// half of them are, for moments; the runtime gets one back at once by the signal
// with which it stops any goroutine. It may be used by any goroutine.
type places struct {
	limit func() int32
	kept  atomic.Int32
}

// asleep is of this process, as the scheduler's places are.
var asleep = places{limit: sync.OnceValue(func() int32 { return int32(runtime.GOMAXPROCS(0) / 2) })}

// keep reports whether the caller may keep its place; leave ends that.
func (p *places) keep() bool {
	if p.kept.Add(1) <= p.limit() {
		return true
	}
	p.kept.Add(-1)
	return false
}

func (p *places) leave() { p.kept.Add(-1) }
