package cascade

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/testlog"
	"cascadekv/tiers"
)

// telling is a cold tier that tells of itself, and does what a test wants.
type telling struct {
	tiers.Files
	mu     sync.Mutex
	health tiers.Health
	sum    tiers.Merged
}

func (c *telling) Put(ctx context.Context, items ...tiers.Item) error {
	if c.Stats().Health.ReadOnly {
		return fmt.Errorf("%w: full", tiers.ErrUnavailable)
	}
	return c.Files.Put(ctx, items...)
}

// Sync makes names durable, unless it is full.
func (c *telling) Sync(context.Context) error {
	if c.Stats().Health.ReadOnly {
		return fmt.Errorf("%w: full", tiers.ErrUnavailable)
	}
	return nil
}

func (c *telling) Stats() tiers.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	health, merged := c.health, c.sum
	return tiers.Stats{Health: &health, Merged: &merged, Striping: &tiers.Striping{Granted: "-c 2"}}
}

func (c *telling) setReadOnly(is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health.ReadOnly = is
}

func (*telling) Merge(context.Context, int64, func([]block.ID)) (tiers.Merged, error) {
	return tiers.Merged{}, nil
}

func newTelling(t *testing.T) (*rig, *telling, *testlog.Log) {
	t.Helper()
	j := &testlog.Log{}
	r := newRig(t, 16<<20, true, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(j, nil)) })
	r.Store.Close(context.Background())
	c := &telling{Files: r.cold}
	r.cold = c
	r.open()
	return r, c, j
}

// merger is a cold tier of which each merge takes three seconds and does the next
// of what it is given; the last fails.
type merger struct {
	telling
	rig   *rig
	next  []tiers.Merged
	fault error
}

func (m *merger) Merge(context.Context, int64, func([]block.ID)) (did tiers.Merged, err error) {
	m.rig.nowMu.Lock()
	m.rig.now = m.rig.now.Add(3 * time.Second)
	m.rig.nowMu.Unlock()
	did, m.next = m.next[0], m.next[1:]
	if len(m.next) == 0 {
		err = m.fault
	}
	return did, err
}

// TestMergesAreLogged: one line for each that did something, also if it failed,
// and none for others.
func TestMergesAreLogged(t *testing.T) {
	r, _, j := newTelling(t)
	m := &merger{rig: r, fault: errors.New("no luck"), next: []tiers.Merged{
		{Merges: 1, Segments: 3, Blocks: 40, Bytes: 5000, Written: 6000, Removed: 20000},
		{},
		{Merges: 1, Segments: 1, Blocks: 7, Bytes: 800, Written: 900},
	}}
	r.Store.Close(context.Background())
	m.Files = r.cold
	r.cold = m
	r.open()
	for i, again := range []bool{true, false, false} {
		if got := r.space.MergeOnce(t.Context()); got != again {
			t.Errorf("merge %d asks for another: %v", i, got)
		}
	}
	lines := j.Lines("merged segments")
	if len(lines) != 2 || len(j.Lines("no luck")) != 1 {
		t.Fatalf("%q, %q", lines, j.Lines("no luck"))
	}
	for i, want := range []string{"segments=3 blocks=40 bytes=5000 freed=14000 duration=3s", "segments=1 blocks=7 bytes=800 freed=-900 duration=3s"} {
		if !strings.Contains(lines[i], "level=INFO") || !strings.Contains(lines[i], "tier=host "+want) {
			t.Errorf("%s, want %s", lines[i], want)
		}
	}
}

// TestReadOnlyIsLoggedOnce: when the cold tier begins to refuse blocks, or names,
// for want of room, with what to do, and when it has stopped.
func TestReadOnlyIsLoggedOnce(t *testing.T) {
	for name, write := range map[string]func(r *rig, turn int){
		"blocks": func(r *rig, turn int) { r.put(ns(fmt.Sprint(turn)), data(uint64(turn), 5000)) },
		"names":  func(r *rig, turn int) { r.put(ns(fmt.Sprint(turn)), data(1, 5000)) },
	} {
		t.Run(name, func(t *testing.T) {
			r, c, j := newTelling(t)
			turn := 0
			drain := func(fails bool) {
				t.Helper()
				turn++
				write(r, turn)
				if _, err := r.Drain(t.Context()); (err != nil) != fails {
					t.Errorf("Drain: %v", err)
				}
			}
			want := func(full, free int) {
				t.Helper()
				began, ended := j.Lines("read-only"), j.Lines("takes blocks again")
				if len(began) != full || len(ended) != free {
					t.Errorf("%q, %q; want %d and %d", began, ended, full, free)
				}
				for _, line := range began {
					if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "raise the quota") {
						t.Error(line)
					}
				}
			}
			for round := range 2 {
				drain(false)
				want(round, round)
				c.setReadOnly(true)
				drain(true)
				drain(true)
				want(round+1, round)
				c.setReadOnly(false)
				drain(false)
				drain(false)
				want(round+1, round+1)
			}
		})
	}
}

// TestColdTierIsTold: what the cold tier tells of itself is in the statistics, and
// a memory tier tells nothing of the kind.
func TestColdTierIsTold(t *testing.T) {
	r, c, _ := newTelling(t)
	c.mu.Lock()
	c.health = tiers.Health{ReadOnly: true, Poisoned: 3, Reads: tiers.ReadErrors{Gone: 4}}
	c.sum = tiers.Merged{Merges: 5}
	c.mu.Unlock()
	all := r.Stats().Tiers
	if cold := all[len(all)-1]; !reflect.DeepEqual(cold.Stats, c.Stats()) {
		t.Errorf("%+v", cold)
	}
	if m := all[0]; m.Health != nil || m.Merged != nil || m.Striping != nil {
		t.Errorf("%+v", m)
	}
}
