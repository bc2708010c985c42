package lustrebench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/testing/testneed"
)

// small is a run that takes moments.
func small(dir string) Options {
	return Options{Dir: dir, Rounds: 1, Bytes: 1 << 20, LimitBytes: 8 << 20, Depth: 3}
}

// TestLustreMeasures everything, in the form that others read, and leaves
// nothing behind.
func TestLustreMeasures(t *testing.T) {
	testneed.Program(t, "fio", "apt-get install fio")
	dir := t.TempDir()
	rounds := 0
	o := small(dir)
	o.Progress = func(done, total int) {
		if rounds++; done != rounds || total != 6 {
			t.Errorf("progress says %d of %d, want %d of 6", done, total, rounds)
		}
	}
	res, err := Run(t.Context(), o)
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
		if b.Bytes != sizes[i] || b.SpeedupWrite <= 0 || b.SpeedupRead <= 0 || b.LongFile <= 0 || b.ReadBound <= 0 || b.Parallel.SpeedupWrite <= 0 || b.Parallel.SpeedupRead <= 0 {
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
	res, err := Run(t.Context(), small(t.TempDir()))
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

// TestKeptBlocksAreReadOnce: what one run writes another reads, wherever it finds
// the directory, and nothing stays behind.
func TestKeptBlocksAreReadOnce(t *testing.T) {
	before, after := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(before, 0o700); err != nil {
		t.Fatal(err)
	}
	o := small(before)
	o.Rounds = 2
	k, err := Keep(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Blocks) != len(sizes) {
		t.Fatalf("%d sizes", len(k.Blocks))
	}
	if _, err := Keep(t.Context(), o); !errors.Is(err, ErrKept) {
		t.Errorf("kept over what is kept: %v", err)
	}
	if err := os.Rename(before, after); err != nil {
		t.Fatal(err)
	}
	res, err := ReadKept(t.Context(), Options{Dir: after})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Blocks) != len(sizes) || res.Rounds != 2 || res.WrittenOn != k.Host {
		t.Fatalf("%+v", res)
	}
	for i, b := range res.Blocks {
		if b.Bytes != sizes[i] || b.SpeedupWrite <= 0 || len(b.ReadRatios) != 2 || b.SpeedupRead <= 0 || b.ReadBound <= 0 {
			t.Errorf("%+v", b)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(after, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := ReadKept(t.Context(), Options{Dir: after}); !errors.Is(err, ErrKept) {
		t.Errorf("read again: %v", err)
	}
}

// TestKeptBlocksThatAreDamaged are an error, whether in what tells of them or in
// themselves, and are left for somebody to look at.
func TestKeptBlocksThatAreDamaged(t *testing.T) {
	long := filepath.Join("43008-0-2", "long")
	for name, c := range map[string]struct {
		file string
		harm func(p []byte) []byte // nil removes the file
		want error
	}{
		"no JSON":        {"kept.json", instead("{", ""), ErrKept},
		"a version":      {"kept.json", instead(`"version": 1`, `"version": 9`), ErrKept},
		"rounds":         {"kept.json", instead(`"rounds": 1`, `"rounds": 7`), ErrKept},
		"another seed":   {"kept.json", instead(`"seed": `, `"seed": 1`), nil},
		"the long file":  {long, func(p []byte) []byte { p[100] ^= 1; return p }, kit.ErrWrong},
		"no long file":   {long, nil, os.ErrNotExist},
		"no description": {"kept.json", nil, ErrKept},
	} {
		t.Run(name, func(t *testing.T) {
			o := small(t.TempDir())
			k, err := Keep(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			change(t, filepath.Join(k.Dir, c.file), c.harm)
			if _, err := ReadKept(t.Context(), o); err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := os.Stat(k.Dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// instead puts one text for another, once.
func instead(from, to string) func(p []byte) []byte {
	return func(p []byte) []byte { return bytes.Replace(p, []byte(from), []byte(to), 1) }
}

// change gives a file other contents, or removes it.
func change(t *testing.T, path string, harm func(p []byte) []byte) {
	t.Helper()
	was, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if harm == nil {
		err = os.Remove(path)
	} else if now := harm(bytes.Clone(was)); bytes.Equal(now, was) {
		t.Fatalf("%s was not changed", path)
	} else {
		err = os.WriteFile(path, now, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestLustreRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		o    Options
		want error
	}{
		"no directory":       {t.Context(), Options{}, kit.ErrBadOption},
		"it does not exist":  {t.Context(), small("/nonexistent"), os.ErrNotExist},
		"rounds":             {t.Context(), Options{Dir: t.TempDir(), Rounds: -1}, kit.ErrBadOption},
		"less than a block":  {t.Context(), Options{Dir: t.TempDir(), Bytes: 100}, kit.ErrBadOption},
		"a limit of nothing": {t.Context(), Options{Dir: t.TempDir(), LimitBytes: 100}, kit.ErrBadOption},
		"interrupted":        {ended, small(t.TempDir()), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Run(c.ctx, c.o); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// TestFioFails: what fio says when it cannot do its part is told.
func TestFioFails(t *testing.T) {
	testneed.Program(t, "fio", "make tools")
	f := &limitFile{b: &bench{o: Options{Depth: 1}}, plain: filepath.Join(t.TempDir(), "none")}
	if err := f.check(t.Context()); err == nil || !strings.Contains(err.Error(), "fio") {
		t.Errorf("a file that is not there: %v", err)
	}
}
