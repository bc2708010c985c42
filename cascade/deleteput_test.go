package cascade

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/dht/fabric/sim"
)

// putsAndDeletes are names, each of which is put on one rank and deleted on another one at about the
// same time, while messages take as long as that.
type putsAndDeletes struct {
	local   bool            // ranks have catalogues
	alias   bool            // the bytes are put under another name too, before their id is known
	copied  bool            // the rank that deletes, and one more, read the name before
	drained bool            // what is put is in files when the name is deleted, if there is time
	skew    []time.Duration // of the ranks' clocks
}

// TestAPutAndADeleteOnTwoRanks: what was put before is gone, what was put after it stays, and of two
// at once all ranks make the same; so after a restart of all. Where clocks differ by more than there is
// between the two, either may be.
func TestAPutAndADeleteOnTwoRanks(t *testing.T) {
	apart := []time.Duration{0, 50 * time.Millisecond, 5 * time.Second, -50 * time.Millisecond}
	for name, how := range map[string]putsAndDeletes{
		"plain":    {},
		"alias":    {alias: true},
		"copied":   {copied: true},
		"drained":  {drained: true},
		"moved":    {drained: true, alias: true},
		"clocks":   {skew: apart},
		"clocks 2": {skew: apart, alias: true, drained: true},
		"clocks 3": {skew: apart, copied: true},
	} {
		for _, how.local = range []bool{false, true} {
			if testing.Short() && (!how.local || name != "clocks 2" && name != "plain") {
				continue
			}
			t.Run(fmt.Sprintf("%s, catalogue %v", name, how.local), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { putAndDelete(t, how) })
			})
		}
	}
}

func putAndDelete(t *testing.T, how putsAndDeletes) {
	const ranks, names, size = 4, 80, 5000
	j := &job{t: t, dir: t.TempDir(), patient: true, virtual: true, links: sim.Options{Seed: 1, MaxDelay: 12 * time.Millisecond}, skew: how.skew}
	if how.local {
		j.local = t.TempDir()
	}
	j.open(ranks, 8<<20)
	time.Sleep(time.Minute)
	type event struct{ begun, done time.Time }
	var put, deleted [names]event
	var all sync.WaitGroup
	at := func(after time.Duration, e *event, fn func()) {
		time.Sleep(after)
		e.begun = time.Now()
		fn()
		e.done = time.Now()
	}
	key := func(i int) string { return fmt.Sprint("k", i) }
	for i := range names {
		offset := time.Duration(i%40-20) * time.Millisecond
		if i%5 == 0 {
			offset = time.Second
		}
		a, b := j.ranks[i%ranks], j.ranks[(i+1+i/ranks%3)%ranks]
		all.Go(func() {
			at(2*time.Second, &put[i], func() {
				if how.alias {
					b.stageKey(t, key(i)+"'", data(uint64(i), size))
				}
				b.stageKey(t, key(i), data(uint64(i), size))
				if how.copied {
					for _, r := range []*jobRank{a, j.ranks[(i+2)%ranks]} {
						for range 4 {
							if v, err := r.Get(t.Context(), "ns", key(i)); err == nil {
								v.Release()
							}
						}
					}
				}
			})
		})
		all.Go(func() { at(2*time.Second+offset, &deleted[i], func() { a.Delete(t.Context(), "ns", key(i)) }) })
	}
	time.Sleep(2500 * time.Millisecond)
	if how.drained {
		j.drainAll(0, 1, 2, 3)
	}
	time.Sleep(5 * time.Second)
	all.Wait()
	j.settle()
	there := [names]bool{}
	for i := range names {
		there[i] = j.ranks[0].Contains(t.Context(), "ns", key(i))
		before, after := deleted[i].begun.Sub(put[i].done), put[i].begun.Sub(deleted[i].done)
		switch {
		case there[i] && (before > 0 && how.skew == nil || before > 500*time.Millisecond):
			t.Errorf("%s was put %v before it was deleted, and is there", key(i), before)
		case !there[i] && after > 0 && how.skew == nil:
			t.Errorf("%s was put %v after it was deleted, and is not there", key(i), after)
		}
	}
	check := func(j *job, when string) {
		t.Helper()
		for i := range names {
			for _, r := range j.ranks {
				v, err := r.Get(t.Context(), "ns", key(i))
				if err == nil {
					v.Release()
				}
				if (err == nil) != there[i] {
					t.Errorf("%s: rank %d has %s: %v, rank 0 had it: %v", when, r.node.Self(), key(i), err == nil, there[i])
				}
				if how.alias {
					r.wantAt(t, key(i)+"'", data(uint64(i), size))
				}
			}
		}
	}
	check(j, "settled")
	j.drainAll(0, 1, 2, 3)
	check(j, "drained")
	again := j.afterRestart()
	check(again, "after a restart")
}

// stageKey puts a name whose id is computed later.
func (r *jobRank) stageKey(t *testing.T, key string, p []byte) {
	t.Helper()
	s, err := r.Stage(t.Context(), int64(len(p)))
	if err != nil {
		t.Fatal(err)
	}
	s.Append(p)
	if err := s.Commit(t.Context(), ns(key)); err != nil {
		t.Fatal(err)
	}
}

// TestADeleteOfANameThatMoved: a rank whose clock is ahead put a name for bytes that it had, and so
// recorded it anew, a little later than its put stamp. Another rank deletes the name: it is gone there too,
// also if the rank was away.
func TestADeleteOfANameThatMoved(t *testing.T) {
	for _, away := range []bool{false, true} {
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprintf("away %v, catalogue %v", away, local), func(t *testing.T) {
				j := threeRanks(t, local)
				b := j.ranks[1]
				b.state.Mu.Lock()
				b.state.Mu.Names.Observe(uint64(time.Now().Add(time.Hour).UnixNano()))
				b.state.Mu.Unlock()
				const names = 8
				key := func(i int) string { return fmt.Sprint("k", i) }
				for i := range names {
					b.stageKey(t, key(i)+"'", data(uint64(i), 5000))
					b.stageKey(t, key(i), data(uint64(i), 5000))
				}
				j.drainAll(1)
				moved := 0
				b.state.Mu.Lock()
				for i := range names {
					for _, k := range []string{key(i), key(i) + "'"} {
						if n := b.state.Mu.Names.Get("ns", k); n.Seq() > n.Put() {
							moved++
						}
					}
				}
				b.state.Mu.Unlock()
				if moved != names {
					t.Fatalf("%d of %d blocks were merged", moved, names)
				}
				if away {
					j.leave(1)
				}
				for i := range names {
					for _, k := range []string{key(i), key(i) + "'"} {
						if !j.ranks[0].Delete(t.Context(), "ns", k) {
							t.Errorf("%s was not there", k)
						}
					}
				}
				if away {
					j.settleWithout(1)
					j.comeBack(1)
				}
				j.settle()
				j.drainAll(0, 1, 2)
				for _, now := range []*job{j, j.afterRestart()} {
					for i := range names {
						for _, r := range now.ranks {
							r.wantMiss(t, key(i))
							r.wantMiss(t, key(i)+"'")
						}
					}
				}
			})
		}
	}
}

// TestAPutAfterOneThatMoved: a rank reads a name of a rank whose clock is ahead, which recorded it anew, a
// little later than its put stamp, and puts it for other bytes. These are what all ranks have, also who reads
// the files of both.
func TestAPutAfterOneThatMoved(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("catalogue ", local), func(t *testing.T) {
			const names, size = 8, 5000
			j := threeRanks(t, local)
			a, b := j.ranks[0], j.ranks[1]
			b.state.Mu.Lock()
			b.state.Mu.Names.Observe(uint64(time.Now().Add(time.Hour).UnixNano()))
			b.state.Mu.Unlock()
			key := func(i int) string { return fmt.Sprint("k", i) }
			for i := range names {
				b.stageKey(t, key(i)+"'", data(uint64(i), size))
				b.stageKey(t, key(i), data(uint64(i), size))
			}
			j.drainAll(1)
			for i := range names {
				for _, k := range []string{key(i), key(i) + "'"} {
					for range 4 {
						a.wantAt(t, k, data(uint64(i), size))
					}
					a.putKey(t, k, data(uint64(100+i), size))
				}
			}
			j.settle()
			j.drainAll(0, 1, 2)
			for _, now := range []*job{j, j.afterRestart()} {
				for i := range names {
					for _, r := range now.ranks {
						r.wantAt(t, key(i), data(uint64(100+i), size))
						r.wantAt(t, key(i)+"'", data(uint64(100+i), size))
					}
				}
			}
		})
	}
}
