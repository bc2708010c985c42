package writeback

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"cascadekv/internal/testing/parttest"
	"cascadekv/tiers"
)

// reporting is a cold tier that reports when it is full.
type reporting struct {
	*parttest.Files
	full bool
}

func (c *reporting) refuse(full bool) {
	c.full = full
	c.Refuse(nil)
	if full {
		c.Refuse(fmt.Errorf("%w: full", tiers.ErrUnavailable))
	}
}

func (c *reporting) Stats() tiers.Stats {
	return tiers.Stats{Health: &tiers.Health{ReadOnly: c.full}}
}

// TestReadOnlyIsLoggedOnce: when the cold tier begins to refuse blocks, or names,
// for want of room, with what to do, and when it has stopped.
func TestReadOnlyIsLoggedOnce(t *testing.T) {
	for name, write := range map[string]func(r *parttest.Rank, turn int){
		"blocks": func(r *parttest.Rank, turn int) {
			r.Put(parttest.Name(fmt.Sprint(turn)), parttest.Data(uint64(turn), 5000))
		},
		"names": func(r *parttest.Rank, turn int) {
			r.Put(parttest.Name(fmt.Sprint(turn)), parttest.Data(1, 5000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, files, w := newWriter(t)
			c := &reporting{Files: files}
			r.Cold.Files = c
			turn := 0
			drain := func(fails bool) {
				t.Helper()
				turn++
				write(r, turn)
				if _, err := w.Drain(context.Background()); (err != nil) != fails {
					t.Errorf("Drain: %v", err)
				}
			}
			want := func(full, free int) {
				t.Helper()
				began, ended := r.Log.Lines("read-only"), r.Log.Lines("takes blocks again")
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
				c.refuse(true)
				drain(true)
				drain(true)
				want(round+1, round)
				c.refuse(false)
				drain(false)
				drain(false)
				want(round+1, round+1)
			}
		})
	}
}
