package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/need"
)

// smallLustre is a run that takes moments.
func smallLustre(dir string) LustreOptions {
	return LustreOptions{Dir: dir, Rounds: 1, Bytes: 1 << 20, LimitBytes: 8 << 20, Depth: 3}
}

// TestLustreMeasures everything, in the form that others read, and leaves
// nothing behind.
func TestLustreMeasures(t *testing.T) {
	need.Program(t, "fio", "apt-get install fio")
	dir := t.TempDir()
	rounds := 0
	o := smallLustre(dir)
	o.Progress = func(done, total int) {
		if rounds++; done != rounds || total != 6 {
			t.Errorf("progress says %d of %d, want %d of 6", done, total, rounds)
		}
	}
	res, err := Lustre(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if rounds != 6 {
		t.Errorf("%d rounds of progress", rounds)
	}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Blocks []struct {
			Bytes        int
			Aggregated   map[string]float64
			PerFile      map[string]float64 `json:"per_file"`
			SpeedupWrite float64            `json:"speedup_write"`
			SpeedupRead  float64            `json:"speedup_read"`
			LongFile     float64            `json:"long_file_read_mbps"`
			ReadBound    float64            `json:"read_bound"`
			Parallel     struct {
				SpeedupWrite float64 `json:"speedup_write"`
				SpeedupRead  float64 `json:"speedup_read"`
			}
		}
		Batch struct{ Speedup float64 }
		Store struct{ Speedup float64 }
		Limit map[string]any
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Blocks) != 3 {
		t.Fatalf("%d sizes", len(out.Blocks))
	}
	for i, b := range out.Blocks {
		if b.Bytes != lustreSizes[i] || b.SpeedupWrite <= 0 || b.SpeedupRead <= 0 || b.LongFile <= 0 || b.ReadBound <= 0 || b.Parallel.SpeedupWrite <= 0 || b.Parallel.SpeedupRead <= 0 {
			t.Errorf("%+v", b)
		}
		for _, side := range []map[string]float64{b.Aggregated, b.PerFile} {
			if len(side) != 2 || side["write_mbps"] <= 0 || side["read_mbps"] <= 0 {
				t.Errorf("%d bytes: %v", b.Bytes, side)
			}
		}
	}
	if out.Batch.Speedup <= 0 || out.Store.Speedup <= 0 {
		t.Errorf("batch: %+v, store: %+v", res.Batch, res.Store)
	}
	for _, key := range []string{"sequential_ratio", "random_ratio"} {
		v, told := out.Limit[key]
		if ratio, _ := v.(float64); !told || ratio <= 0 && res.Limit.Why == "" {
			t.Errorf("%s: %v in %v", key, v, out.Limit)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLustreWithoutFio: the limits are null, and the result says why.
func TestLustreWithoutFio(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	res, err := Lustre(t.Context(), smallLustre(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(res.Limit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"sequential_ratio":null,"random_ratio":null`) || !strings.Contains(res.Limit.Why, "fio is not installed") || res.Limit.RandomMBps <= 0 {
		t.Errorf("%s", text)
	}
}

func TestLustreRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		o    LustreOptions
		want error
	}{
		"no directory":       {t.Context(), LustreOptions{}, ErrBadOption},
		"it does not exist":  {t.Context(), smallLustre("/nonexistent"), os.ErrNotExist},
		"rounds":             {t.Context(), LustreOptions{Dir: t.TempDir(), Rounds: -1}, ErrBadOption},
		"less than a block":  {t.Context(), LustreOptions{Dir: t.TempDir(), Bytes: 100}, ErrBadOption},
		"a limit of nothing": {t.Context(), LustreOptions{Dir: t.TempDir(), LimitBytes: 100}, ErrBadOption},
		"interrupted":        {ended, smallLustre(t.TempDir()), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Lustre(c.ctx, c.o); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestFioFails: what fio says when it cannot do its part is told.
func TestFioFails(t *testing.T) {
	path := need.Program(t, "fio", "make tools")
	f := &limitFile{b: &lustreBench{o: LustreOptions{Depth: 1}}, fio: path, plain: filepath.Join(t.TempDir(), "none")}
	if err := f.check(t.Context()); err == nil || !strings.Contains(err.Error(), "fio") {
		t.Errorf("a file that is not there: %v", err)
	}
}
