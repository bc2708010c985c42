package e2e

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"
)

const crashRounds = 10

// TestKillDuringStorm ends a rank with kill -9 at a random instant, again and
// again, on the same arena and directory.
func TestKillDuringStorm(t *testing.T) {
	const clients = 4
	for name, c := range map[string]struct {
		shm      string
		lustre   bool
		complete bool // nothing that was acknowledged may be absent
	}{
		"room for everything":            {"256MiB", false, true},
		"room for everything and lustre": {"256MiB", true, true},
		"small":                          {"24MiB", false, false},
		"small with lustre":              {"24MiB", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, c.shm)
			if c.lustre {
				p = p.withLustre()
			}
			j := newJournal(clients, 60, 400<<10)
			var sum verdict
			acks := 0
			for range crashRounds {
				r := start(t, p)
				time.AfterFunc(time.Duration(20+rand.IntN(150))*time.Millisecond, r.kill)
				acks += j.storm(t, p.socket, clients)
				r.kill()

				after := start(t, p)
				v := j.check(t, after.dial(t))
				sum.add(v)
				// Segments learn of a deletion within a second, not before DEL is
				// answered.
				if v.undone > 0 && !c.lustre {
					t.Errorf("%d deletions are undone", v.undone)
				}
				if lost := v.absent - v.cut; c.complete && lost > 0 {
					t.Errorf("%d acknowledged blocks are absent although there was room", lost)
				}
				if s := after.stats(t); s.Corrupt > 0 {
					t.Errorf("%d blocks failed their checksum", s.Corrupt)
				}
				after.kill()
				if t.Failed() {
					return
				}
			}
			t.Logf("%d kills in %d acknowledged commands; after the restarts: %v", crashRounds, acks, sum)
			if acks == 0 || sum.present == 0 {
				t.Error("the storm left nothing to check")
			}
		})
	}
}

// TestDeletionReachesLustre kills a rank some time after a DEL and takes its
// arena away; nothing was written after the DEL.
func TestDeletionReachesLustre(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	r := start(t, p)
	c := r.dial(t)
	for _, key := range []string{"deleted", "kept"} {
		if err := c.Set(key, []byte("value of "+key)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Do("CASCADE.DRAIN"); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		st, err := os.Stat(onlySegment(t, p.lustre))
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := size()
	if _, err := c.Do("DEL", "deleted"); err != nil {
		t.Fatal(err)
	}
	until(t, "write of the deletion", func() bool { return size() > before })
	r.signal(t, syscall.SIGKILL)
	r.status(t)
	if err := os.Remove(p.arena); err != nil {
		t.Fatal(err)
	}
	c = start(t, p).dial(t)
	wantValue(t, c, "kept", "value of kept")
	if n, err := c.Do("EXISTS", "deleted"); err != nil || n.Int != 0 {
		t.Errorf("EXISTS of the deleted key: %v, %v", n, err)
	}
}

// TestRescue: what a killed rank had in its arena alone is in lustre after a rescue, which leaves no arena; where
// nothing is left it does nothing.
func TestRescue(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "16MiB").withLustre()
	r := start(t, p)
	if _, err := r.dial(t).Do("SET", "k", "value of k"); err != nil {
		t.Fatal(err)
	}
	r.signal(t, syscall.SIGKILL)
	r.status(t)
	for _, words := range []string{"arena file removed", "nothing is left at " + p.arena} {
		// Of the configuration of a job's rank no peers are asked for.
		rescue := launchWithin(t, nil, p, "--rescue", "--peers-fabric", "tcp", "--peers-listen", "127.0.0.1:0", "--peers-gossip", "127.0.0.1:0", "--peers-secret-file", secretIn(t))
		if got := rescue.status(t); got != 0 {
			t.Fatalf("status %d: %s", got, rescue.stderr)
		}
		rescue.untilSays(t, words)
		leavesNothing(t, p)
	}
	wantValue(t, start(t, p).dial(t), "k", "value of k")
}
