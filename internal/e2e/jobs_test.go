package e2e

import (
	"sync"
	"testing"
	"time"
)

// scribe puts marks on a rank until it is stopped, or the rank ends.
type scribe struct {
	marks marks // acknowledged ones; only of interest once the scribe has stopped
	err   error // why it stopped, if nobody stopped it
	quit  func()
	ended sync.WaitGroup
}

func startScribe(t *testing.T, r *rank, prefix string) *scribe {
	t.Helper()
	c := r.dial(t)
	stop := make(chan struct{})
	w := &scribe{marks: marks{prefix: prefix}, quit: sync.OnceFunc(func() { close(stop) })}
	w.ended.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond): // few enough to be read again
			}
			if w.err = c.Set(w.marks.key(w.marks.n), w.marks.value(w.marks.n)); w.err != nil {
				return
			}
			w.marks.n++
		}
	})
	t.Cleanup(func() { w.stop() }) // before the connection is closed
	return w
}

// stop ends the scribe and returns what was acknowledged. It may be called again.
func (w *scribe) stop() (marks, error) {
	w.quit()
	w.ended.Wait()
	return w.marks, w.err
}

// drained puts marks on a rank and has it write all it has to segments, and then
// something more: of a file that is still written, others on the node believe
// only what a later frame says to be durable (docs/format.md §1.7).
func drained(t *testing.T, r *rank, all ...marks) {
	t.Helper()
	c := r.dial(t)
	for _, m := range append(all, marks{"after-" + all[0].prefix, 1}) {
		m.put(t, c)
		if _, err := c.Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
	}
}

// again ends rank 1 of a job and starts it again, so that the job looks for what
// others left.
func again(t *testing.T, j *job) {
	t.Helper()
	end(t, j.ranks[1])
	j.add(1)
	j.agree(2)
}

// TestTwoJobsOneCampaign has a job of two ranks and one of one rank share a
// directory of segments while both write. Both have a rank 0. Each serves what
// the other stored; then one ends, or is killed, and the other serves what that
// one left.
func TestTwoJobsOneCampaign(t *testing.T) {
	long(t)
	for name, gone := range map[string]func(t *testing.T, r *rank){
		"one ends":      end,
		"one is killed": func(_ *testing.T, r *rank) { r.kill() },
	} {
		t.Run(name, func(t *testing.T) { twoJobs(t, name == "one is killed", gone) })
	}
}

func twoJobs(t *testing.T, killed bool, gone func(t *testing.T, r *rank)) {
	ofA, ofB, more, unread, late := marks{"of-a", 30}, marks{"of-b", 30}, marks{"more", 30}, marks{"unread", 30}, marks{"late", 30}
	a := newJob(t, "32MiB", true, "--job", "a")
	writesA := startScribe(t, a.add(0), "live-a")
	drained(t, a.ranks[0], ofA)

	// Ranks look for what others left a while after ranks of their job came or
	// went.
	b := newJob(t, "32MiB", false, "--job", "b")
	b.lustre = a.lustre
	writesB := startScribe(t, b.add(0), "live-b")
	ofA.everywhere(t, b.clients()...)
	drained(t, b.ranks[0], ofB)
	a.add(1)
	a.agree(2)
	ofB.everywhere(t, a.clients()...)
	drained(t, b.ranks[0], unread, more)
	again(t, a)
	more.everywhere(t, a.clients()...)
	if a.hitsOf("lustre") == 0 || b.hitsOf("lustre") == 0 {
		t.Errorf("%d and %d hits in segments, while both jobs live", a.hitsOf("lustre"), b.hitsOf("lustre"))
	}

	drained(t, b.ranks[0], late)
	gone(t, b.ranks[0])
	before := a.hitsOf("lustre")
	unread.everywhere(t, a.clients()...)
	if hits := a.hitsOf("lustre") - before; hits < uint64(unread.n) {
		t.Errorf("%d hits in segments of the job that is gone, for %d values that were never read before", hits, unread.n)
	}
	liveB, _ := writesB.stop() // its rank is gone
	again(t, a)
	all := []marks{ofA, ofB, more, unread, late}
	if !killed {
		all = append(all, liveB)
	}
	for _, m := range all {
		m.everywhere(t, a.clients()...)
	}
	found := liveB.found(t, a.ranks[0].dial(t))
	liveA, err := writesA.stop()
	if err != nil {
		t.Errorf("the job that stays refused a value after %d: %v", liveA.n, err)
	}
	liveA.everywhere(t, a.clients()...)
	t.Logf("%d values written by the job that stays, all there; %d by the other, %d there", liveA.n, liveB.n, found)
	if liveA.n == 0 || liveB.n == 0 {
		t.Error("a job wrote nothing beside the other")
	}
}
