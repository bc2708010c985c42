package e2e

import (
	"os"
	"testing"
)

// TestTwoRanksOneDirectory has two ranks share a directory of segments. Each
// reads what only the other one's segments hold; then both are killed and lose
// their memory, and a job of three other ranks starts with what they left.
func TestTwoRanksOneDirectory(t *testing.T) {
	j := startJob(t, 2, "32MiB", true)
	clients := j.clients()
	all := []marks{{"of-0", 30}, {"of-1", 30}}
	for i, m := range all {
		m.put(t, clients[i])
	}
	for _, c := range clients {
		if _, err := c.Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range all {
		m.everywhere(t, clients[1-i])
	}
	// Rank 1 loses its memory. What it had stored comes from its segments, on
	// whichever rank one asks.
	j.forget(1)
	j.add(1)
	j.agree(2)
	for i, m := range all {
		m.everywhere(t, j.ranks[1-i].dial(t), j.ranks[i].dial(t))
	}
	if j.hitsOf("lustre") == 0 {
		t.Error("nothing was served from segments")
	}
	j.forget(0)
	j.forget(1)

	next := newJob(t, "32MiB", false)
	next.lustre = j.lustre
	for i := range 3 {
		next.add(i)
	}
	next.agree(3)
	for _, m := range all {
		m.everywhere(t, next.clients()...)
	}
	if hits := next.hitsOf("lustre"); hits == 0 {
		t.Error("the next job served nothing from segments")
	}
	recovered := 0
	for i, r := range next.ranks {
		s := r.stats(t)
		recovered += s.Recovered.Blocks
		t.Logf("rank %d of the next job: recovered %+v, %d hits in segments", i, s.Recovered, tierHits(s, "lustre"))
	}
	if want := all[0].n + all[1].n; recovered < want {
		t.Errorf("the next job recovered %d blocks, at least %d were left", recovered, want)
	}
}

// forget kills a rank and takes its memory away.
func (j *job) forget(i int) {
	j.t.Helper()
	j.ranks[i].kill()
	if err := os.Remove(j.ranks[i].arena); err != nil {
		j.t.Fatal(err)
	}
}
