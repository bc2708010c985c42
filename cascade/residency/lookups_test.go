package residency_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/testing/parttest"
)

// watched returns a rank, what its policy got, and what moves its clock.
func watched(t *testing.T) (r *parttest.Rank, got *recorder, pass func(time.Duration)) {
	got = &recorder{}
	now := time.Unix(1000, 0)
	r = parttest.New(t, func(o *residency.Options) {
		o.Now = func() time.Time { return now }
		o.NewPolicy = func(name string, capacity int64) (policy.Policy, error) {
			p, err := policy.New(name, capacity)
			got.Policy = p
			return got, err
		}
	})
	return r, got, func(d time.Duration) { now = now.Add(d) }
}

// nowhere is a look-up that finds nothing.
func nowhere(int) bool { return false }

// use is a get of one key, and reports whether it belongs to a look-up.
func use(r *parttest.Rank, key string) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	left := residency.LookStep
	return r.Requests.LookedLocked("ns", key, &left)
}

// A look-up is one request of all its keys, with the first of them that is got or put, whatever
// comes between and however often it is looked up. What follows of it is no other.
func TestALookUpIsARequest(t *testing.T) {
	r, got, _ := watched(t)
	r.Put(parttest.Name("a"), parttest.Data(1, 100))
	r.Put(parttest.Name("b", "a"), parttest.Data(2, 100))
	chain := []string{"a", "b", "c", "d"}
	r.Requests.LookedUp("ns", chain, residency.Hint{}, nowhere)
	r.Requests.LookedUp("ns", chain, residency.Hint{}, nowhere)
	r.Requests.LookedUp("ns", []string{"x"}, residency.Hint{}, nowhere)
	if len(got.requests) != 0 {
		t.Fatalf("look-ups are requests: %v", got.requests)
	}
	r.Mu.Lock()
	r.Requests.AddMissLocked(block.Fingerprint("ns", "before")) // of a request that has begun
	r.Mu.Unlock()
	for _, key := range []string{"b", "a", "d"} {
		if !use(r, key) {
			t.Errorf("%q is part of no look-up", key)
		}
	}
	if use(r, "a") || use(r, "z") {
		t.Error("a second get, or one that was not looked up, is part of a look-up")
	}
	r.Mu.Lock()
	r.Requests.PassLocked(true)
	r.Mu.Unlock()
	if len(got.requests) != 2 || len(got.requests[1].Chain) != 1 {
		t.Fatalf("%d requests: %v", len(got.requests), got.requests)
	}
	all := got.requests[0]
	for i, key := range chain {
		if ref := all.Chain[i]; ref.Fingerprint != block.Fingerprint("ns", key) || (ref.Node == policy.NoNode) != (i > 1) {
			t.Errorf("%d: %+v", i, ref)
		}
	}
	if all.Hits != 4 || len(all.Chain) != 4 {
		t.Errorf("%+v", all)
	}
}

// A get long after a look-up is a request of its own.
func TestLookUpsEnd(t *testing.T) {
	r, got, pass := watched(t)
	r.Requests.LookedUp("ns", []string{"a", "b"}, residency.Hint{}, nowhere)
	pass(2 * time.Minute)
	if use(r, "a") || use(r, "b") || len(got.requests) != 0 {
		t.Error("a look-up of two minutes ago counts")
	}
}

// However many keys are looked up, and however long they are, a bounded part of them is kept, the
// latest; a part of a chain that is too long is a request.
func TestLookUpsHaveABound(t *testing.T) {
	r, got, _ := watched(t)
	for i := range 5000 {
		r.Requests.LookedUp("ns", []string{fmt.Sprint("short", i)}, residency.Hint{}, nowhere)
	}
	if use(r, "short0") || !use(r, "short4999") || len(got.requests) != 1 {
		t.Errorf("%d requests", len(got.requests))
	}
	for i := range 20 {
		r.Requests.LookedUp("ns", []string{fmt.Sprint("head", i), strings.Repeat("x", 1<<20)}, residency.Hint{}, nowhere)
	}
	if use(r, "head0") || !use(r, "head19") || !use(r, "head16") {
		t.Error("the first of many long keys is there, or one of the last is not")
	}
	r.Requests.LookedUp("ns", []string{"huge", strings.Repeat("x", 16<<20)}, residency.Hint{}, nowhere)
	if use(r, "huge") {
		t.Error("a key above the bound is kept")
	}
	long := make([]string, residency.LookStep+10)
	for i := range long {
		long[i] = fmt.Sprint("long", i)
	}
	r.Requests.LookedUp("ns", long, residency.Hint{}, nowhere)
	got.requests = nil
	if !use(r, "long5") || use(r, long[len(long)-1]) || len(got.requests) != 1 || len(got.requests[0].Chain) != residency.LookStep {
		t.Errorf("%d requests of a long chain", len(got.requests))
	}
}

// However many look-ups the keys of one get are of, no more than LookStep keys are passed while the
// mutex is held.
func TestLookUpsOfOneGetHaveABound(t *testing.T) {
	r, got, _ := watched(t)
	for i := range 3 {
		chain := make([]string, residency.LookStep/2)
		for at := range chain {
			chain[at] = fmt.Sprint(i, "-", at)
		}
		r.Requests.LookedUp("ns", chain, residency.Hint{}, nowhere)
	}
	r.Mu.Lock()
	left := residency.LookStep
	for i := range 3 {
		if is := r.Requests.LookedLocked("ns", fmt.Sprint(i, "-0"), &left); is != (i < 2) {
			t.Errorf("chain %d is passed: %v", i, is)
		}
	}
	r.Mu.Unlock()
	if len(got.requests) != 2 {
		t.Errorf("%d requests", len(got.requests))
	}
}

// What nothing can be put in is not remembered, though anybody may look for it.
func TestLongNamespacesAreNotKept(t *testing.T) {
	r, _, _ := watched(t)
	ns := strings.Repeat("n", 1<<20)
	r.Mu.Lock()
	spaces := r.Mu.Names.SpaceCount()
	r.Mu.Unlock()
	r.Count.Lookups(ns, 2, 0)
	r.Requests.LookedUp(ns, []string{"a", "b"}, residency.Hint{}, nowhere)
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if r.Mu.Names.SpaceCount() != spaces {
		t.Error("it is remembered")
	}
}
