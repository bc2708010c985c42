package e2e

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/replay"
	"cascadekv/internal/trace"
)

// What a request may take however the ranks fare. A look-up asks two homes and
// a former one, half a second each; a block comes within deadline.fetch or is a
// miss; a put waits for room only. One rank's death costs a request these once
// and not once per block: who does not answer is asked last from then on.
const (
	lookupBound = 3 * 500 * time.Millisecond
	getBound    = lookupBound + 3*time.Second
	putBound    = 5 * time.Second
	scheduling  = time.Second // of a machine that does other things too
)

// stretchOf is a part of a replay: what was asked, what hit, and what would
// have hit in a cache that keeps everything.
type stretchOf struct{ blocks, hits, possible int64 }

func (s stretchOf) String() string {
	return fmt.Sprintf("%.1f %% of %.1f %% possible", 100*float64(s.hits)/float64(s.blocks), 100*float64(s.possible)/float64(s.blocks))
}

// share is the part of the possible hits that were hits.
func (s stretchOf) share() float64 { return float64(s.hits) / float64(max(1, s.possible)) }

// progress follows a replay, request by request.
type progress struct {
	mu    sync.Mutex
	until []replay.Progress // up to and with each request
	at    int               // requests before what is to happen
	do    func()
}

func (p *progress) note(r replay.Progress) {
	p.mu.Lock()
	p.until = append(p.until, r)
	p.mu.Unlock()
	if r.Requests == p.at {
		p.do()
	}
}

// between returns what happened after from requests and before to.
func (p *progress) between(from, to int) stretchOf {
	a, b := p.until[from-1], p.until[to-1]
	return stretchOf{b.Blocks - a.Blocks, b.HitBlocks - a.HitBlocks, b.ReachableBlocks - a.ReachableBlocks}
}

// TestKillOneOfFour ends one of four ranks with kill -9 in the middle of a
// replay and starts it again after it.
func TestKillOneOfFour(t *testing.T) {
	for name, c := range map[string]struct {
		shm    string
		lustre bool
	}{
		"memory only":          {"64MiB", false},
		"a small one + lustre": {"16MiB", true},
	} {
		t.Run(name, func(t *testing.T) { killInReplay(t, startJob(t, 4, c.shm, c.lustre)) })
	}
}

const victim = 2

func killInReplay(t *testing.T, j *job) {
	const requests, kill = 1600, 800
	m := marks{"of-the-victim", 60}
	m.put(t, j.ranks[victim].dial(t))
	if j.lustre != "" {
		if _, err := j.ranks[victim].dial(t).Do("CASCADE.DRAIN"); err != nil {
			t.Fatal(err)
		}
	}
	m.everywhere(t, j.ranks[0].dial(t))

	file := ranksTrace(t, requests)
	p := &progress{at: kill, do: j.ranks[victim].kill}
	r := replayInTest(t, j, file, requests, p)
	judgeReplay(t, r, requests)
	logStretches(t, requests, kill, p)

	left := m.found(t, j.ranks[0].dial(t))
	if j.lustre != "" && left != m.n {
		t.Errorf("%d of %d values are left that the dead rank had written to its segments", left, m.n)
	}
	t.Logf("of %d values that rank %d had put, %d are left; served from lustre: %d blocks", m.n, victim, left, j.hitsOf("lustre"))
	comeBack(t, j, m)
}

// replayInTest replays through all ranks from within the test, which so knows
// where the replay is.
func replayInTest(t *testing.T, j *job, file string, requests int, p *progress) replay.Result {
	t.Helper()
	const blockBytes = 4096
	results, err := replay.Run(t.Context(), replay.Options{
		Trace: func() (trace.Source, error) { return trace.Open(file, trace.ReaderOptions{}) },
		NewTarget: func(ctx context.Context, _ string) (replay.Target, error) {
			var ranks []replay.Target
			for _, r := range j.ranks {
				ranks = append(ranks, replay.NewLiveTarget(replay.LiveOptions{Network: "unix", Addr: r.socket, BlockBytes: blockBytes}))
			}
			return replay.NewGroupTarget(replay.GroupOptions{Survive: true}, ranks...), nil
		},
		BlockBytes: blockBytes, Requests: requests, Workers: 4, Progress: p.note,
	})
	if err != nil {
		t.Fatal(err)
	}
	return results[0]
}

func judgeReplay(t *testing.T, r replay.Result, requests int) {
	t.Helper()
	if r.WrongBytes != 0 || r.Requests != requests {
		t.Errorf("%d wrong bytes; %d requests of %d", r.WrongBytes, r.Requests, requests)
	}
	for what, d := range map[string]struct {
		took  replay.Latency
		bound time.Duration
	}{"probe": {r.ProbeUS, lookupBound}, "get": {r.GetUS, getBound}, "put": {r.PutUS, putBound}} {
		slowest := time.Duration(d.took.Max * float64(time.Microsecond))
		if slowest > d.bound+scheduling {
			t.Errorf("the slowest %s took %v, its deadlines are %v", what, slowest, d.bound)
		}
		t.Logf("%d %ss: p50 %.1f ms, p99 %.1f ms, slowest %v; deadlines: %v", d.took.Count, what, d.took.P50/1e3, d.took.P99/1e3, slowest, d.bound)
	}
	t.Logf("%d requests in %.1f s, %d in which a rank failed; hits: %d shm, %d remote, %d lustre", r.Requests, r.Seconds, r.LostRequests,
		r.Tiers["shm"].Hits, r.Tiers[cascade.RemoteTier].Hits, r.Tiers["lustre"].Hits)
}

// logStretches tells the hit ratio before the kill, right after it and at the
// end, and checks that it has recovered.
func logStretches(t *testing.T, requests, kill int, p *progress) {
	t.Helper()
	before, after, end := p.between(kill/2, kill), p.between(kill, kill+requests/8), p.between(requests*3/4, requests)
	t.Logf("hit ratio before the kill %v, right after %v, at the end %v", before, after, end)
	if before.share() < 0.97 {
		t.Errorf("before the kill only %.2f of the possible hits were hits", before.share())
	}
	if end.share() < after.share() && end.share() < 0.9*before.share() {
		t.Errorf("the hit ratio does not recover: %.2f of the possible hits before, %.2f after, %.2f at the end", before.share(), after.share(), end.share())
	}
}

// comeBack starts the victim again with its arena, and looks for its blocks
// from the others.
func comeBack(t *testing.T, j *job, m marks) {
	t.Helper()
	began := time.Now()
	r := j.add(victim)
	served := time.Since(began)
	j.agree(4)
	agreed := time.Since(began)
	recovered := r.stats(t).Recovered
	if recovered.Blocks == 0 {
		t.Error("the rank took none of its blocks over")
	}
	own := m.found(t, r.dial(t))
	m.everywhere(t, j.ranks[0].dial(t), j.ranks[1].dial(t), j.ranks[3].dial(t))
	t.Logf("started again: serves after %v, all agree after %v; %d blocks recovered, %d of the %d values; all ranks find all values after %v",
		served.Round(time.Millisecond), agreed.Round(time.Millisecond), recovered.Blocks, own, m.n, time.Since(began).Round(time.Millisecond))
	if reads := r.peers(t).Served; j.lustre == "" && reads == 0 {
		t.Error("nobody read the blocks that the rank took over")
	}
}

// TestTermOneOfFour ends one rank of four with SIGTERM in the middle of a
// storm: the others serve all that was acknowledged from its segments.
func TestTermOneOfFour(t *testing.T) {
	const clients = 4
	j := startJob(t, 4, "128MiB", true)
	log := newJournal(clients, 40, 200<<10)
	going := j.ranks[victim]
	log.after(200, func() { _ = going.cmd.Process.Signal(syscall.SIGTERM) })
	acks := log.storm(t, going.socket, clients)
	wantStatus(t, going.status(t), 0, going.stderr)
	going.wantNoArena(t)
	began := time.Now()
	for _, r := range j.running() {
		v := log.check(t, r.dial(t))
		if v.acked == 0 || v.absent > 0 || v.undone > 0 {
			t.Errorf("%s: not everything is there: %v", r.socket, v)
		}
		t.Logf("%d acknowledged commands; %v after the end another rank finds: %v", acks, time.Since(began).Round(time.Millisecond), v)
	}
	if j.hitsOf("lustre") == 0 {
		t.Error("nothing was served from segments")
	}
	j.agree(3)
}
