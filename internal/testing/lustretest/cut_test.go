package lustretest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/internal/testing/guest"
)

// cuts are the figures of a test that cuts power.
type cuts struct {
	Seed   uint64 `json:"seed"`
	Points int    `json:"points"`
	verdict
}

func seed(t *testing.T) (uint64, *rand.Rand) {
	t.Helper()
	n := uint64(number(t, seedVariable, int(time.Now().UnixNano())))
	return n, rand.New(rand.NewPCG(n, 0))
}

// A new campaign begins after perCampaign cuts, for all of one is read again after
// each cut in it, and once it has fullCampaign blocks, some 100 KiB each: a third
// of what the servers have room for.
const (
	perCampaign  = 16
	fullCampaign = 3000
)

// campaign returns where the i-th storm goes on, now being what is in c.
func (s *cuts) campaign(t *testing.T, run runner, i int, c campaign, now verdict) campaign {
	t.Helper()
	if i%perCampaign != 0 && now.Acknowledged < fullCampaign {
		return c
	}
	s.add(now)
	// Else the next cut undoes the removal. The room is there after that cut only.
	must(t, run, "rm -rf /mnt/lustre/cut* && sync")
	return newCampaign(t, fmt.Sprintf("/mnt/lustre/cut%d", i))
}

// storming is the longest time from the start of a storm to the cut. The first
// part of it goes into starting, so that some cuts come before the first put.
const storming = 3 * time.Second

// perMachine is how many cuts a machine's disks live through. Each costs its servers
// some 10 MiB that belong to no file any more and that neither the removal of all
// files nor lfsck gives back: after 75 cuts they are full.
const perMachine = 3 * perCampaign

// TestPowerCut kills servers and client together at random points of a storm
// of puts. After each cut another rank looks for all that was acknowledged.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	equipment(t) // else there is nothing to skip but the parts
	n := number(t, powerVariable, 12)
	seed, random := seed(t)
	sum := cuts{Seed: seed}
	for first, whole := 0, true; whole && first < n; first += perMachine {
		whole = t.Run(fmt.Sprintf("from %d", first), func(t *testing.T) {
			sum.onOne(t, machine(t), first, min(first+perMachine, n), random)
		})
	}
	t.Logf("%d power cuts of servers and client: %v", sum.Points, &sum.verdict)
	summary(t, "power_cut", sum)
	if sum.Acknowledged == 0 {
		t.Error("no storm had anything acknowledged")
	}
}

// onOne cuts the power of one machine, from a first cut to before the end.
func (s *cuts) onOne(t *testing.T, m *guest.Machine, first, end int, random *rand.Rand) {
	t.Helper()
	var c campaign
	var now verdict
	for i := first; i < end; i++ {
		c = s.campaign(t, m.Run, i, c, now)
		at := time.Duration(random.Int64N(int64(storming)))
		stormAndCut(t, m, c, i, at)
		s.Points++
		now = verify(t, m.Run, c)
		if why := now.sound(); why != "" {
			keepEvidence(t, m, c)
			t.Fatalf("seed %d, cut %d after %v: %s", s.Seed, i, at, why)
		}
		t.Logf("cut %d after %v: %v", i, at.Round(time.Millisecond), &now)
	}
	s.add(now)
}

// stormAndCut has a rank put, takes the power after a while, and gives it back.
func stormAndCut(t *testing.T, m *guest.Machine, c campaign, i int, after time.Duration) {
	t.Helper()
	ended := make(chan guest.Result, 1)
	go func() {
		r, err := m.Run(t.Context(), self("storm", c.flags("-storm", fmt.Sprint(i), "-rank", fmt.Sprint(i%3))...))
		if err != nil {
			r = guest.Result{Output: err.Error()}
		}
		ended <- r
	}()
	time.Sleep(after)
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Status != guest.Died {
		t.Fatalf("cut %d: the storm ended by itself: status %d: %s", i, r.Status, r.Output)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// keepEvidence copies the files of a failed campaign to the host.
func keepEvidence(t *testing.T, m *guest.Machine, c campaign) {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("lustretest-evidence-%d", os.Getpid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Log(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := m.Run(ctx, fmt.Sprintf("cp -r %s %s/ && cp %s/journal-* %s/", c.dir, guest.Host(dir), guest.Host(c.host), guest.Host(dir)))
	t.Logf("evidence in %s: status %d %s, %v", dir, r.Status, r.Output, err)
}
