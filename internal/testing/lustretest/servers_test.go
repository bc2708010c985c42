package lustretest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cascadekv/internal/testing/guest"
)

// serverCuts are the figures of TestServerCut.
type serverCuts struct {
	cuts
	Puts    int   `json:"puts"`
	Reads   int   `json:"reads"`
	Failed  int   `json:"failed"` // requests refused, missed or given up
	Late    int64 `json:"late_ms"`
	Overdue int64 `json:"overdue_ms"`
}

// TestServerCut cuts the power of the servers at random points of a storm whose
// client lives on. Every other time the servers stay away until all workers had
// requests that ended at their deadline. The storm goes on afterwards, and then
// another rank looks for what was acknowledged, in what the servers have: the
// client's cache is emptied first.
func TestServerCut(t *testing.T) {
	t.Parallel()
	n := number(t, serverVariable, 2)
	p := pair(t)
	client := func(ctx context.Context, command string) (guest.Result, error) {
		return p.Run(ctx, guest.Client, command)
	}
	seed, random := seed(t)
	sum := serverCuts{cuts: cuts{Seed: seed}}
	var c campaign
	var now verdict
	for i := range n {
		c = sum.campaign(t, client, i, c, now)
		r := begin(t, client, c, i, "-reads=1", "-deadline=2s", fmt.Sprint("-rank=", i%3))
		time.Sleep(time.Duration(random.Int64N(int64(storming))))
		if err := p.Kill(t.Context(), guest.Server); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			r.each(2, "while the servers are away")
		}
		if err := p.Start(t.Context(), guest.Server); err != nil {
			t.Fatal(err)
		}
		r.each(2, "with the servers back")
		r.more(20, 20, "with the servers back")
		s := r.finish()
		must(t, client, "echo 3 >/proc/sys/vm/drop_caches; lctl set_param -n ldlm.namespaces.*.lru_size=clear")
		now = verify(t, client, c)
		if why := now.sound(); why != "" {
			t.Fatalf("seed %d, cut %d: %s", seed, i, why)
		}
		if why := s.inTime(); why != "" {
			t.Errorf("seed %d, cut %d: %s", seed, i, why)
		}
		sum.Points++
		sum.Puts += s.Puts
		sum.Reads += s.Reads
		sum.Failed += s.Refused + s.Busy + s.Missed
		sum.Late, sum.Overdue = max(sum.Late, s.Late), max(sum.Overdue, s.Overdue)
		t.Logf("cut %d: %d puts, %d reads, %d requests failed, at most %d ms late, %d ms but for what the guest delayed (%d ms in all); %v",
			i, s.Puts, s.Reads, s.Refused+s.Busy+s.Missed, s.Late, s.Overdue, s.Stood, &now)
	}
	sum.add(now)
	t.Logf("%d power cuts of the servers: %d puts, %d reads, %d requests failed; %v", sum.Points, sum.Puts, sum.Reads, sum.Failed, &sum.verdict)
	summary(t, "server_cut", sum)
	t.Run("client", func(t *testing.T) { clientCut(t, p, client) })
}

// clientCut cuts the client's power under a storm. What it had closed and not
// synced the servers may have in part, down to pages; a new client finds all that
// was acknowledged.
func clientCut(t *testing.T, p *guest.Pair, client runner) {
	c := newCampaign(t, "/mnt/lustre/client")
	must(t, client, "rm -rf /mnt/lustre/cut*")
	r := begin(t, client, c, 1, "-reads=1")
	r.more(20, 20, "before the client's power is cut")
	if err := p.Kill(t.Context(), guest.Client); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context(), guest.Client); err != nil {
		t.Fatal(err)
	}
	v := verify(t, client, c)
	if why := v.sound(); why != "" {
		t.Error(why)
	}
	t.Logf("power cut of the client: %v; left out: %q", &v, few(v.Skipped))
	summary(t, "client_cut", v)
}
