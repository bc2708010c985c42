package rank

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/config"
	"cascadekv/lustre/tuner"
)

// TestTuningLog: every line of a decision has its cost and the load,
// at the level of its weight.
func TestTuningLog(t *testing.T) {
	d := tuner.Decision{
		Verdict: tuner.Change, Serial: 3, From: tuner.Default, To: tuner.Setting{T: 4, K: 15}, Before: 2.5, After: 1.25,
		Mix: tuner.Mix{Put: 0.7, Hit: 0.3},
	}
	kept := d
	kept.Verdict, kept.To, kept.After = tuner.Keep, d.From, d.Before
	for name, c := range map[string]struct {
		d     tuner.Decision
		made  bool
		err   error
		words []string
	}{
		"proposed": {d, false, nil, []string{"level=INFO", "serial=3", "2.500 to 1.250 pages"}},
		"made":     {d, true, nil, []string{"level=INFO", "index: retuned", "t=4 k=15", "serial=3", "2.500 to 1.250 pages"}},
		"failed":   {d, true, errors.New("no disk"), []string{"level=WARN", "retune failed", "no disk", "2.500 to 1.250 pages"}},
		"kept":     {kept, false, nil, []string{"level=DEBUG", "2.500 to 2.500 pages"}},
	} {
		var out bytes.Buffer
		tuningLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))(c.d, c.made, c.err)
		for _, w := range append(c.words, "put 70.0 %, hit 30.0 %") {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: no %q in %s", name, w, &out)
			}
		}
	}
}

// TestIndexDir: each campaign and rank has a directory of its own that nobody
// else can change, and one that others could have made is refused.
func TestIndexDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	c := config.Default()
	c.Lustre.Dir, c.Rank = "/scratch/kv", 3
	dir, campaign, err := indexDir(c)
	if err != nil || !strings.HasPrefix(dir, tmp) || !strings.HasSuffix(dir, "-rank003") || !strings.Contains(campaign, "/scratch/kv") {
		t.Fatalf("%s, %s, %v", dir, campaign, err)
	}
	for _, d := range []string{dir, filepath.Dir(dir), filepath.Dir(filepath.Dir(dir))} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", d, info, err)
		}
	}
	again, _, err := indexDir(c)
	if err != nil || again != dir {
		t.Errorf("the second time: %s, %v", again, err)
	}
	c.Rank = 4
	other, _, _ := indexDir(c)
	c.Rank, c.Lustre.Dir = 3, "/scratch/kv2"
	third, _, _ := indexDir(c)
	if other == dir || third == dir || other == third {
		t.Errorf("%s, %s and %s are of two ranks and two campaigns", dir, other, third)
	}
	c.Lustre.Index = filepath.Join(tmp, "given", "by", "the user")
	if given, _, err := indexDir(c); err != nil || filepath.Dir(given) != c.Lustre.Index {
		t.Errorf("%s, %v", given, err)
	}
	for name, harm := range map[string]func(mine string) error{
		"a link":        func(mine string) error { return os.Symlink(t.TempDir(), mine) },
		"others' write": func(mine string) error { return os.Mkdir(mine, 0o700) },
		"a file":        func(mine string) error { return os.WriteFile(mine, nil, 0o600) },
	} {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		c.Lustre.Index = "auto"
		mine := filepath.Join(tmp, filepath.Base(filepath.Dir(filepath.Dir(dir))))
		if err := harm(mine); err != nil {
			t.Fatal(err)
		}
		if name == "others' write" {
			if err := os.Chmod(mine, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := indexDir(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestIndexBase: a directory of the configuration in which others can put another
// index in the place of this one's is refused; everybody's with a sticky bit is
// not.
func TestIndexBase(t *testing.T) {
	c := config.Default()
	c.Lustre.Dir = "/scratch/kv"
	for mode, good := range map[os.FileMode]bool{0o755: true, 0o777 | os.ModeSticky: true, 0o777: false, 0o775: false} {
		c.Lustre.Index = t.TempDir()
		if err := os.Chmod(c.Lustre.Index, mode); err != nil {
			t.Fatal(err)
		}
		if _, _, err := indexDir(c); (err == nil) != good {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}
