package estimate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// engine computes chains, one after the other, and puts their blocks.
type engine struct {
	Prefills
	now  time.Duration
	keys uint64 // given so far
}

// chain is so many blocks that were never asked for.
func (e *engine) chain(n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		e.keys++
		keys[i] = e.keys
	}
	return keys
}

func (e *engine) miss(keys []uint64) {
	e.Missed(e.now, "ns", keys)
}

// compute computes a chain that was missed, so long for each block, and puts so many at a time.
func (e *engine) compute(keys []uint64, perBlock time.Duration, together int) {
	for i := range keys {
		e.now += perBlock
		if (i+1)%together == 0 || i == len(keys)-1 {
			for _, k := range keys[i-i%together : i+1] {
				e.Stored(e.now, k)
			}
		}
	}
}

func (e *engine) want(t *testing.T, perBlock time.Duration) {
	t.Helper()
	if got := e.PerBlock("ns"); math.Abs(float64(got)/float64(perBlock)-1) > .2 {
		t.Errorf("a block takes %v, want %v", got, perBlock)
	}
}

// TestPrefillIsLearned: whatever is put together, and however long the chains are.
func TestPrefillIsLearned(t *testing.T) {
	const per = 5 * time.Millisecond
	for name, together := range map[string]int{"one by one": 1, "some": 4, "at the end": math.MaxInt} {
		t.Run(name, func(t *testing.T) {
			e, r := &engine{}, rand.New(rand.NewPCG(1, 2))
			for i := range 20 {
				if got := e.PerBlock("ns"); (got > 0) != (i >= leastRuns) {
					t.Errorf("after %d chains a block takes %v", i, got)
				}
				keys := e.chain(2 + r.IntN(300))
				e.miss(keys)
				e.compute(keys, per, together)
			}
			e.want(t, per)
			if got := e.PerBlock("other"); got != 0 {
				t.Errorf("of a namespace of which nothing is known %v", got)
			}
		})
	}
}

// TestPrefillOfABusyEngine: requests that wait, that are looked for in each step while they do, or come
// twice, and chains of which another engine puts the rest, change little.
func TestPrefillOfABusyEngine(t *testing.T) {
	const per = 5 * time.Millisecond
	for name, disturb := range map[string]func(e *engine, keys []uint64){
		"waits":                func(e *engine, keys []uint64) { e.miss(keys); e.now += 3 * time.Second },
		"waits a minute":       func(e *engine, keys []uint64) { e.miss(keys); e.now += 2 * prefillFor },
		"comes twice":          func(e *engine, keys []uint64) { e.miss(keys); e.compute(keys[:5], per, 1); e.miss(keys[5:]) },
		"comes from elsewhere": func(e *engine, keys []uint64) { e.miss(keys); e.compute(keys, time.Microsecond, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			e := &engine{}
			for i := range 60 {
				keys := e.chain(40)
				if i%3 == 0 {
					disturb(e, keys)
				} else {
					e.miss(keys)
				}
				e.compute(keys, per, 4)
			}
			e.want(t, per)
		})
	}
	e := &engine{}
	for range 20 { // a scheduler asks in each step until the request's turn comes
		keys := e.chain(40)
		for range 100 {
			e.miss(keys)
			e.now += 20 * time.Millisecond
		}
		e.miss(keys)
		e.compute(keys, per, 4)
	}
	e.want(t, per)
}

// TestPrefillChanges: another model size in the same namespace, or another machine, is known after some chains.
func TestPrefillChanges(t *testing.T) {
	e := &engine{}
	for _, per := range []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Millisecond} {
		for range prefillRuns {
			keys := e.chain(20)
			e.miss(keys)
			e.compute(keys, per, 4)
		}
		e.want(t, per)
	}
}

// TestPrefillIsBounded: whatever is looked for and never put.
func TestPrefillIsBounded(t *testing.T) {
	e := &engine{}
	for range 1000 {
		e.miss(e.chain(1000))
		e.miss(e.chain(1))
	}
	if len(e.waits) > prefillWaits || len(e.order) > prefillWaits {
		t.Errorf("%d keys are remembered", len(e.waits))
	}
	for i := range 2 * prefillSpaces {
		keys := e.chain(2)
		e.Missed(e.now, string(rune('a'+i)), keys[:2])
		e.compute(keys, time.Millisecond, 1)
	}
	if len(e.spaces) > prefillSpaces {
		t.Errorf("%d namespaces", len(e.spaces))
	}
}

// Of more namespaces than are kept, the newest are known.
func TestPrefillOfNewNamespaces(t *testing.T) {
	var p Prefills
	now := time.Duration(0)
	run := func(space string, base uint64) {
		for i := range uint64(leastRuns) {
			now += time.Second
			keys := []uint64{base + 10*i, base + 10*i + 1}
			p.Missed(now, space, keys)
			p.Stored(now+20*time.Millisecond, keys[1])
		}
	}
	for i := range uint64(prefillSpaces) {
		run(fmt.Sprint("old", i), 1000*(i+1))
	}
	run("new", 1)
	if first, last, newest := p.PerBlock("old0"), p.PerBlock("old255"), p.PerBlock("new"); first != 0 || last != 10*time.Millisecond || newest != 10*time.Millisecond {
		t.Errorf("learned %v, %v and %v", first, last, newest)
	}
}
