package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht/fabric"
	"cascadekv/internal/replay"
)

// TestMPI runs ranks over MPI as its own launchers start them.
func TestMPI(t *testing.T) {
	long(t)
	t.Run("openmpi", func(t *testing.T) { ranksOverMPI(t, mpirun(t), (*mpiJob).termSlowly) })
	t.Run("mpich", func(t *testing.T) { ranksOverMPI(t, mpiexec(t), (*mpiJob).termSlowly) })
	// MPICH's launcher ends all ranks when one dies, whatever it is told.
	t.Run("a death with openmpi", func(t *testing.T) { deathOverMPI(t, mpirun(t, "--mca", "orte_enable_recovery", "1")) })
}

// TestOneSided asks for one-sided reads: where the probe finds that they are
// served they are used, and the ranks are one cache either way.
func TestOneSided(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		launch  func(*testing.T) launcher
		verdict string
	}{
		"openmpi": {func(t *testing.T) launcher { return mpirun(t) }, "used from"},
		"mpich":   {func(t *testing.T) launcher { return mpiexec(t) }, "not used"},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMPI(t, c.launch(t), "64MiB", false, "--peers-one-sided-from", "1KiB")
			link := m.ranks[0].peers(t).Link
			if !strings.Contains(link, "one-sided reads: "+c.verdict) {
				t.Errorf("the verdict of the probe: %q", link)
			}
			survivorsTalk(t, m)
			wantStatus(t, m.termSlowly(), 0, m.said)
			t.Logf("link: %s", link)
		})
	}
}

// ranksOverMPI goes from start to end with four ranks.
func ranksOverMPI(t *testing.T, l launcher, end func(*mpiJob) int) {
	m := startMPI(t, l, "64MiB", true)
	for i, r := range m.ranks {
		if s := r.peers(t); s.Fabric != "mpi" || int(s.Rank) != i || s.Ranks != mpiRanks {
			t.Errorf("rank %d says it is %d of %d over %s", i, s.Rank, s.Ranks, s.Fabric)
		}
	}
	t.Logf("link: %s", m.ranks[0].peers(t).Link)
	statusOverMPI(t, m)

	const requests = 500
	file := ranksTrace(t, requests)
	r := replayed(t, file, "--limit", fmt.Sprint(requests), "--sockets", m.sockets(), "--workers", "4", "--block-bytes", "4KiB")[0]
	sound(t, r)
	if r.Requests != requests || r.LostRequests != 0 || r.RejectedBlocks != 0 {
		t.Errorf("%d requests of %d, %d lost, %d blocks rejected", r.Requests, requests, r.LostRequests, r.RejectedBlocks)
	}
	if r.Tiers[cascade.RemoteTier].Hits == 0 {
		t.Errorf("no hit came from another rank: %+v", r.Tiers)
	}
	// Homes hear of a put a moment after it, so a little less than all is found.
	if r.HitRatioBlocks < 0.9*r.UnlimitedHitRatio {
		t.Errorf("hit ratio %.4f, an unlimited cache has %.4f", r.HitRatioBlocks, r.UnlimitedHitRatio)
	}
	t.Logf("%d requests, %d blocks in %.1f s: hit ratio %.4f of %.4f possible; shm %d, remote %d; slowest probe %.0f ms, get %.0f ms, put %.0f ms",
		r.Requests, r.Blocks, r.Seconds, r.HitRatioBlocks, r.UnlimitedHitRatio, r.Tiers["shm"].Hits, r.Tiers[cascade.RemoteTier].Hits,
		r.ProbeUS.Max/1e3, r.GetUS.Max/1e3, r.PutUS.Max/1e3)

	began := time.Now()
	wantStatus(t, end(m), 0, m.said)
	if m.endings() != mpiRanks {
		t.Errorf("%d of %d ranks said to have ended in good order", m.endings(), mpiRanks)
	}
	t.Logf("told to end, all ended after %v", time.Since(began).Round(time.Millisecond))
}

func statusOverMPI(t *testing.T, m *mpiJob) {
	t.Helper()
	for _, r := range m.ranks {
		status, out, said := finish(t, program("cascade"), "status", "--socket", r.socket)
		if status != 0 {
			t.Error(said)
		}
		wantWords(t, out, "RING", "25.0 %", "alive", "remote")
	}
}

// deathOverMPI ends one of four ranks with kill -9 in the middle of a replay.
// The others go on, with each other.
func deathOverMPI(t *testing.T, l launcher) {
	l = l.overTCP()
	m := startMPI(t, l, "64MiB", true)
	const requests, kill = 1200, 500
	file := ranksTrace(t, requests)
	var died time.Time
	p := &progress{at: kill, do: func() { died = time.Now(); m.kill(victim) }}
	r := replayInTest(t, m.job, file, requests, p)
	for i := range m.ranks {
		if m.up(i) == (i == victim) {
			t.Fatalf("rank %d runs: %v", i, m.up(i))
		}
	}
	for _, r := range m.running() {
		until(t, fmt.Sprintf("the death of rank %d as %s sees it", victim, r.socket), func() bool { return stateOf(t, r, victim) == "gone" })
	}
	m.agree(mpiRanks - 1)
	judgeDeath(t, r, requests)
	logDeath(t, m, died)
	logStretches(t, requests, kill, p)
	survivorsTalk(t, m)

	began := time.Now()
	status := m.term()
	if m.endings() != mpiRanks-1 {
		t.Errorf("%d of %d survivors said to have ended in good order", m.endings(), mpiRanks-1)
	}
	t.Logf("SIGTERM to the survivors: ended after %v; the launcher's exit status is %d", time.Since(began).Round(time.Millisecond), status)
}

var deathLine = regexp.MustCompile(fmt.Sprintf(`time=(\S+) level=INFO msg="member died" rank=(\d+) member=%d `, victim))

// logDeath tells when the last of the others said that the victim died.
func logDeath(t *testing.T, m *mpiJob, died time.Time) {
	t.Helper()
	var found [][]string
	until(t, "word of the death from each survivor", func() bool {
		found = deathLine.FindAllStringSubmatch(m.said.String(), -1)
		return len(found) == mpiRanks-1
	})
	var last time.Duration
	for _, line := range found {
		at, err := time.Parse(time.RFC3339Nano, line[1])
		if err != nil {
			t.Fatal(err)
		}
		last = max(last, at.Sub(died))
	}
	t.Logf("the last of the others said %v after the kill that the rank is dead", last.Round(time.Millisecond))
}

// judgeDeath holds each kind of request against its deadlines. What requests
// take without a death comes on top: ranks over MPI poll, and here they share a
// few cores.
func judgeDeath(t *testing.T, r replay.Result, requests int) {
	t.Helper()
	if r.WrongBytes != 0 || r.Requests != requests {
		t.Errorf("%d wrong bytes; %d requests of %d", r.WrongBytes, r.Requests, requests)
	}
	us := func(f float64) time.Duration {
		return time.Duration(f * float64(time.Microsecond)).Round(time.Microsecond)
	}
	for _, d := range []struct {
		what  string
		took  replay.Latency
		bound time.Duration
	}{{"probe", r.ProbeUS, lookupBound}, {"batch of gets", r.GetUS, getBound}, {"batch of puts", r.PutUS, putBound}} {
		if us(d.took.Max) > d.bound+scheduling+us(d.took.P99) {
			t.Errorf("the slowest %s took %v, its deadlines are %v and the p99 is %v", d.what, us(d.took.Max), d.bound, us(d.took.P99))
		}
		t.Logf("%s: p50 %v, p99 %v, slowest %v; deadlines: %v", d.what, us(d.took.P50), us(d.took.P99), us(d.took.Max), d.bound)
	}
	t.Logf("%d requests in %.1f s, %d in which a rank failed; hits: %d shm, %d remote", r.Requests, r.Seconds, r.LostRequests,
		r.Tiers["shm"].Hits, r.Tiers[cascade.RemoteTier].Hits)
}

func stateOf(t *testing.T, r *rank, of fabric.Rank) string {
	t.Helper()
	for _, s := range r.ranks(t) {
		if s.Rank == of {
			return s.State
		}
	}
	return "unknown"
}

// survivorsTalk reads on each running rank what each other one has.
func survivorsTalk(t *testing.T, m *mpiJob) {
	t.Helper()
	began := time.Now()
	for i, from := range m.running() {
		values := marks{fmt.Sprintf("after-%d", i), 20}
		values.put(t, from.dial(t))
		for _, to := range m.running() {
			values.everywhere(t, to.dial(t))
		}
	}
	for _, r := range m.running() {
		if s := r.peers(t); s.Served == 0 || s.Reads == 0 {
			t.Errorf("%s read %d blocks of others, and served %d", r.socket, s.Reads, s.Served)
		}
	}
	t.Logf("the survivors read each other's values within %v", time.Since(began).Round(time.Millisecond))
}
