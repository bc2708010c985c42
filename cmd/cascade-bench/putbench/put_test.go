package putbench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
)

func TestPutMeasuresEverySize(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "cascade-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rounds := 0
	o := Options{Sizes: []int{64 << 10, 1 << 20}, Rounds: 2, Workers: 2, Budget: 5 * time.Millisecond, ShmDir: dir,
		Progress: func(done, total int) {
			if rounds++; done != rounds || total != 4 {
				t.Errorf("progress says %d of %d, want %d of 4", done, total, rounds)
			}
		}}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Sizes) != 2 || rounds != 4 || res.Workers != 2 {
		t.Fatalf("%d sizes, %d rounds, %d workers", len(res.Sizes), rounds, res.Workers)
	}
	for _, s := range res.Sizes {
		if s.Ratio <= 0 || s.Evicting.Ratio <= 0 || len(s.Ratios) != 2 || len(s.Evicting.Ratios) != 2 || s.Blocks < 2 {
			t.Errorf("%+v", s)
		}
	}
	if last := res.Sizes[1]; res.RatioHash != last.Ratio || res.RatioHashEvict != last.Evicting.Ratio {
		t.Errorf("main figures %v, %v are not of the last size: %+v", res.RatioHash, res.RatioHashEvict, last)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPutRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		o    Options
		want error
	}{
		"tiny blocks":  {t.Context(), Options{Sizes: []int{1}}, kit.ErrTooSmall},
		"rounds":       {t.Context(), Options{Rounds: -1}, kit.ErrBadOption},
		"no directory": {t.Context(), Options{Sizes: []int{4096}, ShmDir: "/nonexistent"}, os.ErrNotExist},
		"interrupted":  {ended, Options{Sizes: []int{4096}, ShmDir: t.TempDir()}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Run(c.ctx, c.o); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
