package cascade

import (
	"fmt"
	"testing"
	"time"

	"cascadekv/cascade/residency"
)

// learn has a level's estimate be that of loads that each took so long.
func learn(m *residency.Level, took time.Duration) {
	for now := range time.Duration(50) {
		l := m.Speed.Begin(now, 64<<10)
		m.Speed.End(now+took, l, true)
	}
}

// twoCopies is a chain that one rank has in its cold tier alone, and another in memory.
// spilled: the catalogue alone knows of the cold tier's.
func twoCopies(t *testing.T, cold time.Duration, spilled bool) (j *job, keys []string) {
	t.Helper()
	j = &job{t: t, dir: t.TempDir(), segmentBytes: 128 << 10}
	if spilled {
		j.local = t.TempDir()
	}
	j.open(2, 16<<20)
	a, b := j.ranks[0], j.ranks[1]
	for i := range 8 {
		keys = append(keys, fmt.Sprint("k", i))
		a.putKey(t, keys[i], data(uint64(i), 64<<10))
	}
	for i := range 16 { // more files, so that those of the chain are no more written to
		if spilled {
			j.drainAll(0)
			a.putKey(t, fmt.Sprint("more", i), data(uint64(100+i), 64<<10))
		}
	}
	j.drainAll(0)
	views, err := b.GetBatch(t.Context(), "ns", keys, Resident)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range views {
		v.Release()
	}
	j.settle()
	a.dropMemory(t)
	if spilled {
		a.space.SpillAll(t.Context())
		for i := range keys {
			a.state.Mu.Lock()
			b := a.state.Mu.Blocks[idOf(data(uint64(i), 64<<10))]
			a.state.Mu.Unlock()
			if b != nil {
				t.Fatalf("block %d is not spilled", i)
			}
		}
	}
	j.settle()
	a.cold.set(readsTake(cold))
	learn(a.state.Cold, cold)
	learn(a.state.Remote, time.Millisecond)
	return j, keys
}

// wantChain checks that a rank serves a chain as twoCopies made it, all from one tier.
func (r *jobRank) wantChain(t *testing.T, keys []string, tier string) {
	t.Helper()
	views, err := r.GetBatch(t.Context(), "ns", keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range views {
		if v == nil {
			t.Fatalf("block %d is a miss: %v", i, r.Stats().Losses)
		}
		if string(v.Bytes()) != string(data(uint64(i), 64<<10)) || v.Tier() != tier {
			t.Errorf("block %d comes from %s, or has other bytes", i, v.Tier())
		}
		v.Release()
	}
}

// TestTheFastestCopyOfAChain: what a probe says of a chain in the cold tier that another rank has in memory is
// where a get reads it from, and that is the faster one.
func TestTheFastestCopyOfAChain(t *testing.T) {
	for name, c := range map[string]struct {
		cold    time.Duration
		tier    func(*jobRank) string
		spilled bool
	}{
		"slow":         {300 * time.Millisecond, func(*jobRank) string { return RemoteTier }, false},
		"fast":         {10 * time.Microsecond, func(r *jobRank) string { return r.state.ColdName() }, false},
		"slow spilled": {300 * time.Millisecond, func(*jobRank) string { return RemoteTier }, true},
		"fast spilled": {10 * time.Microsecond, func(r *jobRank) string { return r.state.ColdName() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			j, keys := twoCopies(t, c.cold, c.spilled)
			a, tier := j.ranks[0], c.tier(j.ranks[0])
			lookups := a.node.Stats().Lookups
			p := lookUp(t.Context(), a.Store, "ns", keys).res
			if p.Hits != len(keys) || len(p.Runs) != 1 || p.Runs[0].Tier != tier || p.Tiers[tier] != len(keys) {
				t.Errorf("a probe finds %+v", p)
			}
			a.wantChain(t, keys, tier)
			if asked := a.node.Stats().Lookups != lookups; asked != (tier == RemoteTier) {
				t.Errorf("others were asked: %v", asked)
			}
		})
	}
}

// TestTheFastestCopyGoes: a rank that has died, or hangs, is no reason for a miss of what the cold tier has.
func TestTheFastestCopyGoes(t *testing.T) {
	for name, end := range map[string]func(*job){
		"known":   func(j *job) { j.die(1) },
		"unknown": func(j *job) { j.world.Kill(1) },
	} {
		for _, spilled := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " spilled ", spilled), func(t *testing.T) {
				j, keys := twoCopies(t, 100*time.Millisecond, spilled)
				end(j)
				j.ranks[0].wantChain(t, keys, j.ranks[0].state.ColdName())
			})
		}
	}
}

// TestTheFastestCopyGoesMidway: the owner dies between its home's answer and the read.
func TestTheFastestCopyGoesMidway(t *testing.T) {
	j, keys := twoCopies(t, 100*time.Millisecond, false)
	a := j.ranks[0]
	release := a.load.HoldReads()
	done := make(chan struct{})
	lookups := a.node.Stats().Lookups
	go func() {
		defer close(done)
		a.wantChain(t, keys, a.state.ColdName())
	}()
	eventually(t, "others are asked", func() bool { return a.node.Stats().Lookups != lookups })
	eventually(t, "the blocks are looked for there", func() bool {
		a.state.Mu.Lock()
		defer a.state.Mu.Unlock()
		return a.load.AwayLocked() == len(keys)
	})
	j.world.Kill(1)
	release()
	<-done
}
