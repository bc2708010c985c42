package cascade

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/names"
)

// What one client leaves behind is cleared away in steps, between which others
// are served: they see a part of it gone.
func TestOthersAreServedMeanwhile(t *testing.T) {
	left := map[string]func(r *rig) int{
		"names":  func(r *rig) int { return r.Len("ns") },
		"leases": func(r *rig) int { return r.Stats().Leases },
	}
	for name, c := range map[string]struct {
		left  string
		names int // clearing them takes longer than a core is given to one thread
		leave func(r *rig, key string)
		clear func(r *rig)
	}{
		"names expire": {
			left:  "names",
			names: 10_000,
			leave: func(r *rig, key string) { r.Expire(context.Background(), "ns", key, r.now.Add(time.Second)) },
			clear: func(r *rig) { r.advance(2 * time.Second) },
		},
		"leases end": {
			left:  "leases",
			names: 60_000,
			leave: func(r *rig, key string) { r.Lease(context.Background(), "ns", key, "me", time.Second) },
			clear: func(r *rig) { r.advance(2 * time.Second) },
		},
		"leases are given back": {
			left:  "leases",
			names: 60_000,
			leave: func(r *rig, key string) { r.Lease(context.Background(), "ns", key, "me", time.Hour) },
			clear: func(r *rig) { r.Leases().End("me") },
		},
		"a namespace is cleared": {
			left:  "names",
			names: 10_000,
			leave: func(*rig, string) {},
			clear: func(r *rig) { r.Clear(context.Background(), "ns", false) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			// On a busy machine nobody else may be awake just then.
			for range 20 {
				r := newRig(t, 16<<20, false)
				for i := range c.names {
					key := fmt.Sprint(i)
					r.put(ns(key), data(1, 10))
					c.leave(r, key)
				}
				cleared, part := make(chan struct{}), false
				go func() {
					defer close(cleared)
					c.clear(r)
				}()
				for n := c.names; n > 0; n = left[c.left](r) {
					part = part || n < c.names
				}
				<-cleared
				if part {
					return
				}
			}
			t.Error("others saw all of it, and then nothing")
		})
	}
}

func TestScanMayCallTheStore(t *testing.T) {
	r := newRig(t, 16<<20, false)
	for i := range 2 * scanStep {
		r.put(ns(fmt.Sprint(i)), data(1, 10))
	}
	looked := make(chan int)
	go func() {
		n := 0
		r.Scan("ns", 0, 1<<20, func(key string) bool {
			if _, ok := r.Stat(context.Background(), "ns", key); ok {
				n++
			}
			return n < scanStep+1
		})
		looked <- n
	}()
	select {
	case n := <-looked:
		if n < scanStep+1 || n > 2*scanStep {
			t.Errorf("%d names", n)
		}
	case <-time.After(time.Minute):
		t.Fatal("the scan waits for itself")
	}
}

// However many clients ask for a name, the next one looks at a bounded number of
// leases, and the name stays for as long as was promised to any of them.
func TestLeasesOfOneNameAreBounded(t *testing.T) {
	r := newRig(t, 16<<20, false)
	r.put(ns("a"), data(1, 10))
	for i := range 1000 {
		r.Lease(context.Background(), "ns", "a", fmt.Sprint(i), time.Minute)
	}
	if n := r.Stats().Leases; n != names.MaxOwners+1 {
		t.Errorf("%d leases", n)
	}
	for i := range 1000 {
		r.Leases().End(fmt.Sprint(i))
	}
	if n := r.Stats().Leases; n != 1 {
		t.Errorf("%d leases after all owners have left, want the shared one", n)
	}
	r.advance(2 * time.Minute)
	if n := r.Stats().Leases; n != 0 || r.state.Mu.Names.HeldBytes() != 0 {
		t.Errorf("%d leases, %d bytes held", n, r.state.Mu.Names.HeldBytes())
	}
	checkInvariants(t, r.Store)
}

// Leases of one block that exceed the budget together end one another.
func TestLeasesOfOneBlockEndOneAnother(t *testing.T) {
	r := newRig(t, 8<<20, true, func(o *Options) { o.Limits.LeaseShare = 0.1 })
	refuse(r)
	r.put(ns("a"), data(1, 500_000))
	for i := range 5 {
		r.Lease(context.Background(), "ns", "a", fmt.Sprint(i), time.Duration(i+1)*time.Minute)
	}
	for i := range 40 {
		r.put(ns(fmt.Sprint("b", i)), data(uint64(10+i), 500_000))
	}
	checkInvariants(t, r.Store)
}
