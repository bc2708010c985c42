package cascade

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cascadekv/dht"
	"cascadekv/dht/fabric"
)

// know has the ranks of each side take those of others for that.
func (j *job) know(state fabric.State, sides ...[]fabric.Rank) {
	all := j.members()
	for i, side := range sides {
		for _, r := range side {
			for k, others := range sides {
				for _, other := range others {
					if m := all[other]; k != i {
						j.ranks[r].node.SetMembers(dht.Member{Rank: other, Incarnation: m.Incarnation, State: state})
					}
				}
			}
		}
	}
}

// TestNamesThatGoWhileARankIsAway: for some minutes a rank is cut off. Meanwhile names that it has, of which
// homes have heard or not, are deleted, or put anew for a while; and it reads some more of them from files.
// Once it is back nobody serves what they were, itself included, nor after a restart of all.
func TestNamesThatGoWhileARankIsAway(t *testing.T) {
	for _, state := range []fabric.State{fabric.Alive, fabric.Suspect, fabric.Gone} {
		for _, local := range []bool{false, true} {
			if testing.Short() && (!local || state == fabric.Suspect) {
				continue
			}
			t.Run(fmt.Sprintf("%v, catalogue %v", state, local), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { goWhileAway(t, state, local) })
			})
		}
	}
}

func goWhileAway(t *testing.T, state fabric.State, local bool) {
	const each, size = 16, 8 << 10
	j := &job{t: t, dir: t.TempDir(), patient: true, virtual: true}
	if local {
		j.local = t.TempDir()
	}
	j.open(4, 8<<20)
	away := j.ranks[3]
	kinds := []string{"own", "unheard", "read", "ends"}
	key := func(kind string, i int) string { return fmt.Sprint(kind, i) }
	for i := range each {
		away.putKey(t, key("own", i), data(uint64(i), size))
		away.putKey(t, key("ends", i), data(uint64(300+i), size))
		j.ranks[i%3].putKey(t, key("read", i), data(uint64(200+i), size))
	}
	j.drainAll(0, 1, 2, 3)
	for i := range each { // so that it has a place to read from when it is alone
		away.wantAt(t, key("read", i), data(uint64(200+i), size))
	}
	sides := [][]fabric.Rank{{0, 1, 2}, {3}}
	j.world.Partition(sides...)
	for i := range each {
		if state == fabric.Alive { // then only homes that wait for it remember deletions for longer
			break
		}
		away.putKey(t, key("unheard", i), data(uint64(100+i), size))
	}
	j.know(state, sides...)
	time.Sleep(15 * time.Second)
	for i := range each {
		for _, kind := range kinds[:3] {
			j.ranks[i%3].Delete(t.Context(), "ns", key(kind, i))
		}
		e := ns(key("ends", i))
		e.Expires = time.Now().Add(time.Minute)
		if _, err := j.ranks[i%3].Put(t.Context(), e, data(uint64(400+i), size), nil); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if v, err := away.Get(t.Context(), "ns", key("read", i)); err == nil {
				v.Release()
			}
		}
	}
	for range 4 {
		time.Sleep(time.Minute)
		for _, r := range j.ranks {
			r.Sweep()
		}
	}
	j.world.Heal()
	j.know(fabric.Alive, sides...)
	time.Sleep(15 * time.Second)
	j.settle()
	check := func(j *job, when string) {
		t.Helper()
		for i := range each {
			for _, kind := range kinds {
				for _, r := range j.ranks {
					if v, err := r.Get(t.Context(), "ns", key(kind, i)); err == nil {
						v.Release()
						t.Errorf("%s: rank %d serves %s", when, r.node.Self(), key(kind, i))
					}
				}
			}
		}
	}
	check(j, "healed")
	j.drainAll(0, 1, 2, 3)
	check(j.afterRestart(), "after a restart")
}
