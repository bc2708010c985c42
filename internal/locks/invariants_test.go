//go:build invariants

package locks

import (
	"context"
	"strings"
	"testing"
)

// refused fails unless do panics and says so.
func refused(t *testing.T, what, why string, do func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if text, ok := recover().(string); !ok || !strings.Contains(text, why) {
			t.Errorf("%s: %q, want a panic with %q", what, text, why)
		}
	}()
	do()
}

// kinds are locks of a rank, each taken in its way.
func kinds(r Rank) map[string]struct{ take, give func() } {
	var m Mutex
	var rw RWMutex
	m.SetRank(r)
	rw.SetRank(r)
	token := NewToken(r)
	take := func() {
		if err := token.Take(context.Background()); err != nil {
			panic(err)
		}
	}
	return map[string]struct{ take, give func() }{
		"mutex": {m.Lock, m.Unlock}, "read": {rw.RLock, rw.RUnlock}, "write": {rw.Lock, rw.Unlock}, "token": {take, token.Give},
	}
}

// TestOrder takes each pair of locks in both orders.
func TestOrder(t *testing.T) {
	for first := Flushing; first <= Events; first++ {
		for second := Flushing; second <= Events; second++ {
			for outer, o := range kinds(first) {
				for inner, i := range kinds(second) {
					o.take()
					if second > first {
						i.take()
						i.give()
					} else {
						refused(t, outer+" "+first.String()+", "+inner+" "+second.String(), "is taken while", i.take)
					}
					o.give()
					i.take() // nothing is left behind
					i.give()
				}
			}
		}
	}
}

func TestWhatIsNotHeld(t *testing.T) {
	for name, k := range kinds(State) {
		refused(t, name+" is given back", "is not held", k.give)
		k.take()
		refused(t, name+" is taken twice", "is held already", k.take)
		other := make(chan struct{})
		go func() {
			defer close(other)
			refused(t, name+" is given back by another goroutine", "is not held", k.give)
		}()
		<-other
		k.give()
	}
	var m Mutex
	refused(t, "a mutex that nobody holds", "is not held", m.AssertHeld)
	m.Lock()
	m.AssertHeld()
	other := make(chan struct{})
	go func() {
		defer close(other)
		refused(t, "a mutex that another goroutine holds", "is not held", m.AssertHeld)
	}()
	<-other
	AssertBefore(Flushing) // it has no rank
	m.Unlock()
}
