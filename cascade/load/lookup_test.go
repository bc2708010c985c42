package load

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"cascadekv/cascade/others"
	"cascadekv/cascade/residency"
	"cascadekv/internal/testing/parttest"
)

// catalogued makes a chain of n blocks known that only the catalogue has, with keys that
// begin with name.
func (r *rank) catalogued(name string, n int) (a *Prefetch, keys []string) {
	a = NewPrefetch("ns", n)
	for i := range n {
		key, p := fmt.Sprint(name, i), parttest.Data(uint64(i), size)
		r.known.Hold(named(key, 5), p)
		r.files.mu.Lock()
		r.files.segments[key] = p
		r.files.mu.Unlock()
		a.Add(key, others.Hit{Found: true, Size: size})
		keys = append(keys, key)
	}
	return a, keys
}

// here counts the blocks of a chain that are in memory.
func (r *rank) here(keys []string) (n int) {
	r.Workers.Wait()
	for _, k := range keys {
		if r.Block(k) != nil {
			n++
		}
	}
	return n
}

// Whoever probes does not wait until the blocks of its chain are found: they are found, and
// fetched together, all the same. A get that comes meanwhile does not wait for that either.
func TestBlocksAreFoundBehindTheAnswer(t *testing.T) {
	r := newRank(t)
	a, keys := r.catalogued("", partReads+5)
	goOn := r.known.Stop()
	t.Cleanup(goOn)
	var answered atomic.Bool
	go func() {
		r.StartPrefetch(a)
		answered.Store(true)
	}()
	parttest.Eventually(t, "the probe answers", answered.Load)
	r.wants(r.get(t.Context(), false, keys[0])[0], parttest.Data(0, size), "host")
	if got := r.files.reads(); !slices.Equal(got, []int{1}) {
		t.Errorf("read %v before blocks are found", got)
	}
	goOn()
	if n := r.here(keys); n != partReads+1 {
		t.Errorf("%d blocks are here, want one that was asked for and %d", n, partReads)
	}
	if got := r.files.reads(); len(got) != 2 || !slices.Contains(got, 1) || !slices.Contains(got, partReads-1) {
		t.Errorf("read %v, want all but one together, and one more for it", got)
	}
	r.idle()
}

// The keys of a request die with it.
func TestKeysOfAProbeAreCopied(t *testing.T) {
	r := newRank(t)
	_, keys := r.catalogued("", 2)
	request := []byte("01")
	a := NewPrefetch("ns", 2)
	for i := range request {
		a.Add(unsafe.String(&request[i], 1), others.Hit{Found: true, Size: size})
	}
	goOn := r.known.Stop()
	r.StartPrefetch(a)
	copy(request, "xx")
	goOn()
	if n := r.here(keys); n != 2 {
		t.Errorf("%d of 2 blocks are here", n)
	}
	r.idle()
}

// As many blocks more are found once a step of them is asked for.
func TestFoundBlocksAreAheadOfTheGets(t *testing.T) {
	const step = partReads / PrefetchBlocks
	r := newRank(t)
	a, keys := r.catalogued("", partReads+2*step)
	goOn := r.files.stop()
	r.StartPrefetch(a)
	parttest.Eventually(t, "blocks are on their way", func() bool {
		r.Mu.Lock()
		defer r.Mu.Unlock()
		return len(r.guarded.fetches) == partReads
	})
	views := make(chan []*residency.View)
	go func() { views <- r.get(t.Context(), false, keys[:step]...) }()
	r.waiting(keys[step-1], 1)
	goOn()
	for i, v := range <-views {
		r.wants(v, parttest.Data(uint64(i), size), "host")
	}
	if n := r.here(keys); n != partReads+step {
		t.Errorf("%d blocks are here, want %d", n, partReads+step)
	}
	r.idle()
}

// What was deleted, or put, since it was probed is not fetched; others of its chain are.
func TestWhatChangesBeforeItIsFound(t *testing.T) {
	r := newRank(t)
	a, keys := r.catalogued("", partReads+2)
	goOn := r.known.Stop()
	r.StartPrefetch(a)
	r.Mu.Lock()
	r.others.InvalidateLocked(residency.NameID{NS: "ns", Key: "0"}, 6)
	r.Mu.Unlock()
	r.Put(parttest.Name("1"), parttest.Data(100, size))
	goOn()
	if n := r.here(keys[2:]); n != partReads || r.Block("0") != nil {
		t.Errorf("%d blocks are here, want %d; the deleted one: %v", n, partReads, r.Block("0") != nil)
	}
	r.idle()
}

// Of more chains than may wait, those probed last are fetched.
func TestChainsThatWaitAreBounded(t *testing.T) {
	r := newRank(t)
	goOn := r.known.Stop()
	var all []string
	for i := range maxLookups + 5 {
		a, keys := r.catalogued(fmt.Sprint(i, "-"), 1)
		r.StartPrefetch(a)
		all = append(all, keys...)
		if i == 0 {
			parttest.Eventually(t, "the first is looked for", func() bool {
				r.Mu.Lock()
				defer r.Mu.Unlock()
				return len(r.guarded.lookups.queue) == 0
			})
		}
	}
	goOn()
	if n, dropped := r.here(all), r.here(all[1:5]); n != maxLookups+1 || dropped != 0 {
		t.Errorf("%d blocks are here, %d of those that waited first", n, dropped)
	}
	r.idle()
}

// All that is fetched ahead has a bound, and a closed store looks nothing up.
func TestLookupsEnd(t *testing.T) {
	for name, end := range map[string]func(r *rank){
		"full":   func(r *rank) { r.guarded.prefetchBytes += maxPrefetchBytes - 2*size },
		"closed": func(r *rank) { r.Mu.Closed = true },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRank(t)
			goOn, readOn := r.known.Stop(), r.files.stop() // what has landed and nobody asked for gives its bytes back
			a, first := r.catalogued("a", 4)
			b, second := r.catalogued("b", 4)
			r.StartPrefetch(a)
			r.StartPrefetch(b)
			r.Mu.Lock()
			end(r)
			r.Mu.Unlock()
			goOn()
			parttest.Eventually(t, "no chain is looked for", func() bool {
				r.Mu.Lock()
				defer r.Mu.Unlock()
				return !r.guarded.lookups.runs && len(r.guarded.lookups.queue) == 0
			})
			readOn()
			want := 0
			if name == "full" {
				want = 2
			}
			if n := r.here(append(first, second...)); n != want {
				t.Errorf("%d blocks are here, want %d", n, want)
			}
		})
	}
}
