package e2e

import (
	"syscall"
	"testing"

	"cascadekv/internal/resp"
)

// TestTermDrainsToLustre ends a rank with SIGTERM in the middle of a storm,
// takes its memory away and looks for everything that was acknowledged.
func TestTermDrainsToLustre(t *testing.T) {
	const clients = 4
	p := newPlace(t, "256MiB").withLustre()
	j := newJournal(clients, 60, 400<<10)
	r := start(t, p)
	j.after(200, func() { _ = r.cmd.Process.Signal(syscall.SIGTERM) })
	acks := j.storm(t, p.socket, clients)
	wantStatus(t, r.status(t), 0, r.stderr)
	p.wantNoArena(t)

	after := start(t, p)
	s := after.stats(t)
	v := j.check(t, after.dial(t))
	t.Logf("%d acknowledged commands; after the restart: %v; recovered %+v, spilled %+v", acks, v, s.Recovered, s.Spilled)
	if v.acked == 0 || v.absent > 0 || v.undone > 0 {
		t.Errorf("not everything came back: %v", v)
	}
	if s.Recovered.Names+s.Spilled.Names < v.present || s.DirtyBlocks != 0 {
		t.Errorf("recovered %+v, spilled %+v, %d dirty blocks; want all names, and nothing dirty", s.Recovered, s.Spilled, s.DirtyBlocks)
	}
	wantTier(t, after, "lustre")
}

// TestTermKeepsChains checks that parents and namespaces come back too.
func TestTermKeepsChains(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	r := start(t, p)
	c := r.dial(t)
	for i, key := range []string{"head", "middle", "tail"} {
		args := []string{"CASCADE.PUT", key, "value of " + key, "NS", "model/a"}
		if i > 0 {
			args = append(args, "PARENT", []string{"head", "middle"}[i-1])
		}
		if _, err := c.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	p.wantNoArena(t)

	c = start(t, p).dial(t)
	probe, err := c.Do("CASCADE.PROBE", "model/a", "head", "middle", "tail", "none")
	if err != nil {
		t.Fatal(err)
	}
	if hits := probe.Field("hits").Int; hits != 3 {
		t.Errorf("%d leading blocks of the chain are cached, want 3", hits)
	}
	stat, err := c.Do("CASCADE.STAT", "model/a", "tail")
	if err != nil {
		t.Fatal(err)
	}
	if parent := stat.Field("parent").Text(); parent != "middle" {
		t.Errorf("the parent of tail is %q, want middle", parent)
	}
}

// wantTier checks that a tier served something.
func wantTier(t *testing.T, r *rank, name string) {
	t.Helper()
	for _, tier := range r.stats(t).Tiers {
		if tier.Name == name {
			if tier.Hits == 0 {
				t.Errorf("%s served nothing: %+v", name, tier)
			}
			return
		}
	}
	t.Errorf("no tier is called %s", name)
}

// TestTermWithoutLustreKeepsArena checks the other way to end well: without a
// cold tier the arena file alone carries everything over.
func TestTermWithoutLustreKeepsArena(t *testing.T) {
	p := newPlace(t, "64MiB")
	r := start(t, p)
	if err := r.dial(t).Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
	wantValue(t, start(t, p).dial(t), "k", "v")
}

func wantValue(t *testing.T, c *resp.Client, key, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := c.Get(key, got); err != nil || string(got[:n]) != want {
		t.Errorf("GET %s: %q, %v; want %q", key, got[:n], err, want)
	}
}
