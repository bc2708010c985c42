//go:build faults

package cascade

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"cascadekv/cascade/residency"
	"cascadekv/internal/block"
	"cascadekv/internal/inject"
)

// loading is a store that gets keys, wherever they are, while rules are in force.
type loading struct {
	*Store
	t    *testing.T
	size int
}

// get gets the keys of blocks, and returns how many came, all with their bytes, and
// what was lost.
func (l loading) get(keys []string, rules ...string) (came int, lost residency.LossCounts) {
	l.t.Helper()
	before := l.Stats()
	if err := inject.Set(rules...); err != nil {
		l.t.Fatal(err)
	}
	views, err := l.GetBatch(l.t.Context(), "ns", keys)
	if err != nil {
		l.t.Fatal(err)
	}
	for i, v := range views {
		if v == nil {
			continue
		}
		came++
		if !bytes.Equal(v.Bytes(), blockOf(keys[i], l.size)) {
			l.t.Errorf("%v: %s has wrong bytes", rules, keys[i])
		}
		v.Release()
	}
	for _, r := range inject.Report() {
		if r.Fired == 0 {
			l.t.Errorf("%s %s does not happen", r.Step, r.Kind)
		}
	}
	_ = inject.Set()
	after := l.Stats()
	if n := after.Misses - before.Misses; n != uint64(len(keys)-came) {
		l.t.Errorf("%v: %d misses counted of %d", rules, n, len(keys)-came)
	}
	lost = residency.LossCounts{}
	for step, reasons := range after.Losses {
		for reason, n := range reasons {
			lost.Add(step, reason, n-before.Losses[step][reason])
		}
	}
	return came, lost
}

// idle waits until nothing is on its way or held.
func (l loading) idle() {
	l.t.Helper()
	eventually(l.t, "nothing is held", func() bool {
		l.state.Mu.Lock()
		defer l.state.Mu.Unlock()
		return l.state.Count.Stats.Views == 0 && l.load.Idle()
	})
	checkInvariants(l.t, l.Store)
}

// whole waits until all keys come, none of them lost. What does not come is put again, as
// engines do, if again. A fetch that a fault has made late may be about to end, and that a
// file is gone the store notices block by block.
func (l loading) whole(keys []string, again bool) {
	l.t.Helper()
	eventually(l.t, "all blocks are there again", func() bool {
		came, lost := l.get(keys)
		if came == len(keys) {
			return len(lost) == 0
		}
		for _, k := range keys {
			if !again {
				break
			}
			if _, err := l.Put(l.t.Context(), ns(k), blockOf(k, l.size), nil); err != nil {
				l.t.Error(err)
			}
		}
		return false
	})
	l.idle()
}

// all is what must be lost when everything is, for one reason.
func all(n int, step, reason string) residency.LossCounts {
	return residency.LossCounts{step: {reason: uint64(n)}}
}

// blockOf is what a key stands for.
func blockOf(key string, size int) []byte { return data(uint64(block.CRC([]byte(key))), size) }

func same(a, b residency.LossCounts) bool {
	return maps.EqualFunc(a, b, func(x, y map[string]uint64) bool { return maps.Equal(x, y) })
}

// fault is a rule that has everything lost, and why.
type failing struct{ rule, reason string }

func (f failing) step() string { return strings.Fields(f.rule)[0] }

// Each step of a load in memory fails: the blocks are misses with a reason, and the
// next load has them.
func TestFaultsInMemory(t *testing.T) {
	r := newRig(t, 16<<20, false)
	l := loading{r.Store, t, 100_000}
	keys := []string{"a", "b", "c", "d"}
	for _, k := range keys {
		r.put(ns(k), blockOf(k, l.size))
	}
	for _, f := range []failing{{"lookup error", "unavailable"}, {"pin error", "unavailable"}} {
		if came, lost := l.get(keys, f.rule); came != 0 || !same(lost, all(4, f.step(), f.reason)) {
			t.Errorf("%s: %d came, lost %v", f.rule, came, lost)
		}
		l.whole(keys, false)
	}
	if found := r.ContainsBatch(t.Context(), "ns", [][]byte{[]byte("a")}); !found[0] {
		t.Error("a is not found")
	}
	if came, lost := l.get(keys, "pin error every=2 count=1"); came != 3 || !same(lost, all(1, "pin", "unavailable")) {
		t.Errorf("one pin fails: %d came, lost %v", came, lost)
	}
}

// The same of blocks in segments: this rank's own, and those that only another rank's
// segments have. What is damaged is a miss once for all, and can be put again.
func TestFaultsOfSegments(t *testing.T) {
	faults := []failing{
		{"segment error", "unavailable"}, {"segment delay wait=500ms", "deadline"}, {"segment short", "corrupt"}, {"segment flip", "corrupt"}, {"segment drop", "gone"},
	}
	check := func(t *testing.T, l loading, f failing, keys []string) {
		// Blocks are read together, so that of some kinds one alone has the fault.
		if came, lost := l.get(keys, f.rule); came == len(keys) || !same(lost, all(len(keys)-came, "segment", f.reason)) {
			t.Errorf("%s: %d came, lost %v, want %s", f.rule, came, lost, f.reason)
		}
		l.idle()
		l.whole(keys, true)
	}
	for _, f := range faults {
		t.Run("own/"+f.rule, func(t *testing.T) {
			j := (&job{t: t, dir: t.TempDir()}).open(1, 16<<20)
			l := loading{j.ranks[0].Store, t, 400_000}
			l.SetLimits(Limits{FetchDeadline: 300e6})
			for i := range 60 { // more than there is memory
				k := fmt.Sprintf("%02d", i)
				j.ranks[0].putKey(t, k, blockOf(k, l.size))
			}
			var keys []string
			for i := 0; i < 60 && len(keys) < 3; i++ {
				k := fmt.Sprintf("%02d", i)
				info, _ := l.Stat(t.Context(), "ns", k)
				if slices.Equal(info.Tiers, []string{l.state.ColdName()}) {
					keys = append(keys, k)
				}
			}
			check(t, l, f, keys)
		})
		t.Run("another's/"+f.rule, func(t *testing.T) {
			j := (&job{t: t, dir: t.TempDir()}).open(2, 16<<20)
			l := loading{j.ranks[1].Store, t, 100_000}
			l.SetLimits(Limits{FetchDeadline: 300e6})
			keys := []string{"a", "b", "c"}
			for _, k := range keys {
				j.ranks[0].putKey(t, k, blockOf(k, l.size))
			}
			if _, err := j.ranks[0].Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			j.settle()
			j.die(0)
			check(t, l, f, keys)
		})
	}
}

// The same of blocks in another rank's memory, which still has them then.
func TestFaultsOfRemoteReads(t *testing.T) {
	j := newJob(t, 2, 16<<20)
	l := loading{j.ranks[1].Store, t, 100_000}
	l.SetLimits(Limits{FetchDeadline: 300e6})
	for i, f := range []failing{
		{"lookup error", "unavailable"}, {"lookup delay wait=1ms", ""}, {"remote error", "unavailable"}, {"remote delay wait=1s", "deadline"}, {"remote short", "unavailable"},
		{"remote flip", "corrupt"}, {"remote drop", "gone"},
	} {
		var keys []string
		for k := range 3 {
			keys = append(keys, fmt.Sprint(i, k))
			j.ranks[0].putKey(t, keys[k], blockOf(keys[k], l.size))
		}
		j.settle()
		want, left := all(3, f.step(), f.reason), 0
		if f.reason == "" {
			want, left = residency.LossCounts{}, 3
		}
		if came, lost := l.get(keys, f.rule); came != left || !same(lost, want) {
			t.Errorf("%s: %d came, lost %v, want %v", f.rule, came, lost, want)
		}
		l.whole(keys, false)
	}
}
