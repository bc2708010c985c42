package e2e

import (
	"fmt"
	"testing"
	"time"
)

// TestRestartUndoesNothing changes values while a rank that has copies of them
// is dead, and starts it again, or another one that was never there. Both read
// the segments, which hold what was before the changes.
func TestRestartUndoesNothing(t *testing.T) {
	for name, restart := range map[string]func(j *job) *rank{
		"with its arena": func(j *job) *rank { return j.add(victim) },
		"another one":    func(j *job) *rank { return j.add(3) },
	} {
		t.Run(name, func(t *testing.T) {
			j := startJob(t, 3, "32MiB", true)
			changeWhileDead(t, j, func() *rank { return restart(j) })
		})
	}
}

func changeWhileDead(t *testing.T, j *job, restart func() *rank) {
	clients := j.clients()
	written := map[int]marks{}
	for i, c := range clients { // each of the three has some that nobody else put
		m := marks{fmt.Sprintf("of-%d", i), 12}
		m.put(t, c)
		m.everywhere(t, clients...)
		written[i] = m
	}
	for _, r := range j.ranks {
		if _, err := r.dial(t).Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
	}
	j.ranks[victim].kill()
	for _, m := range written {
		for k := 0; k < m.n; k += 3 {
			if _, err := clients[0].Do("DEL", m.key(k)); err != nil {
				t.Fatal(err)
			}
			if err := clients[1].Set(m.key(k+1), []byte("newer")); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(1500 * time.Millisecond) // segments learn of a deletion within a second
	r := restart()
	for _, m := range written {
		for i, one := range j.running() {
			c := one.dial(t)
			for k := 0; k < m.n; k += 3 {
				becomesSoon(t, i, c, m.key(k), "")
				becomesSoon(t, i, c, m.key(k+1), "newer")
				becomesSoon(t, i, c, m.key(k+2), string(m.value(k+2)))
			}
		}
	}
	t.Logf("recovered %+v", r.stats(t).Recovered)
}
