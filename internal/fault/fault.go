package fault

import (
	"runtime/debug"
	"sync/atomic"
)

var handler atomic.Pointer[func(addr uintptr)]

// Handle has f called when a guarded goroutine has touched memory that is gone,
// with its address, in that goroutine, after what it had deferred. f does not
// return if it deals with the fault; if it does, the goroutine panics. It may be
// called for several goroutines at once. Nil: none is called any more.
func Handle(f func(addr uintptr)) {
	if f == nil {
		handler.Store(nil)
		return
	}
	handler.Store(&f)
}

// Guard makes this goroutine panic where a fault would end the program. The caller
// defers what it returns, which passes faults to the handler and panics on with
// everything else.
func Guard() (end func()) {
	debug.SetPanicOnFault(true)
	return func() {
		p := recover()
		if p == nil {
			return
		}
		if at, is := p.(interface{ Addr() uintptr }); is {
			if f := handler.Load(); f != nil {
				(*f)(at.Addr())
			}
		}
		panic(p)
	}
}
