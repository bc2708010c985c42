package fault

import (
	"runtime/debug"
	"sync/atomic"
)

var handler atomic.Pointer[func(panicked any)]

// Handle has f called when a guarded goroutine panics, with the value, in that
// goroutine, after what it had deferred; Addr distinguishes faults from the rest. f does not
// return: what is none of its business it passes on by a panic of its own. It may be
// called for several goroutines at once. Nil: panics go on as without a guard.
func Handle(f func(panicked any)) {
	if f == nil {
		handler.Store(nil)
		return
	}
	handler.Store(&f)
}

// Addr returns the address that was touched, for the panic of a fault.
func Addr(panicked any) (addr uintptr, is bool) {
	at, is := panicked.(interface{ Addr() uintptr })
	if !is {
		return 0, false
	}
	return at.Addr(), true
}

// Guard makes this goroutine panic where a fault would end the program. The caller
// defers what it returns, which passes panics to the handler.
func Guard() (end func()) {
	debug.SetPanicOnFault(true)
	return func() {
		f := handler.Load()
		if f == nil {
			return
		}
		if p := recover(); p != nil {
			(*f)(p)
		}
	}
}
