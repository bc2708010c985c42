package rank

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/testing/testlog"
	"cascadekv/lustre/layout"
	"cascadekv/lustre/segment"
)

func logged(t *testing.T, do func(*slog.Logger)) string {
	t.Helper()
	var b testlog.Log
	do(slog.New(slog.NewTextHandler(&b, nil)))
	if n := strings.Count(b.String(), "\n"); n != 1 {
		t.Errorf("%d lines, want one:\n%s", n, b.String())
	}
	return b.String()
}

func TestLayoutIsLoggedInOneLine(t *testing.T) {
	asked := layout.Plain(4, 0, "")
	for name, tc := range map[string]struct {
		report layout.Report
		want   []string
	}{
		"granted": {layout.Report{Path: "/s/f.tmp", Asked: asked, Striped: true}, []string{"level=INFO", "layout of segments", "file=/s/f ", `asked="-c 4"`}},
		"differs": {layout.Report{Path: "/s/f", Asked: asked, Striped: true, Differences: []layout.Difference{{Kind: layout.Fewer, Component: -1, Asked: "4 stripes", Granted: "2 stripes"}}},
			[]string{"level=WARN", "not striped as configured", "2 stripes instead of 4 stripes", "lfs osts"}},
		"refused": {layout.Report{Path: "/s/f", Asked: asked, Striped: true, Err: errors.New("no such thing")}, []string{"level=WARN", "written all the same", "no such thing"}},
		"default": {layout.Report{Path: "/s/f", Striped: true}, []string{"level=INFO", "the file system's default"}},
	} {
		t.Run(name, func(t *testing.T) {
			line := logged(t, func(log *slog.Logger) { logLayout(log, tc.report) })
			for _, part := range tc.want {
				if !strings.Contains(line, part) {
					t.Errorf("%s does not say %q", line, part)
				}
			}
		})
	}
}

func TestFileSystemIsLoggedInOneLine(t *testing.T) {
	dir := t.TempDir()
	if i, err := layout.Detect(dir); err != nil || i.Lustre {
		t.Skipf("the directory for temporary files is on Lustre: %v", err)
	}
	for name, tc := range map[string]struct {
		c    config.Lustre
		want []string
	}{
		"no keys": {config.Lustre{Dir: dir}, []string{"level=INFO", "not on Lustre"}},
		"keys":    {config.Lustre{Dir: dir, StripeCount: 4}, []string{"level=WARN", "no effect there", `asked="-c 4"`}},
		"gone":    {config.Lustre{Dir: filepath.Join(dir, "no")}, []string{"level=WARN", "is unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			line := logged(t, func(log *slog.Logger) { logFileSystem(tc.c, segment.Access{}, log) })
			for _, part := range tc.want {
				if !strings.Contains(line, part) {
					t.Errorf("%s does not say %q", line, part)
				}
			}
		})
	}
}

func TestABadSetstripeLineIsAConfigurationError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[lustre]\nsetstripe = \"-c many\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Load(config.Sources{File: file})
	if err == nil || !strings.Contains(err.Error(), file+":2: lustre.setstripe") || !strings.Contains(err.Error(), "-c many: not a number") {
		t.Error(err)
	}
}

func TestStripingKeysDoNoHarmElsewhere(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.Lustre.Dir, c.Lustre.Setstripe = dir, "-E 64M -c 1 -E -1 -c 16 -S 4m"
	var b testlog.Log
	striper, err := newStriper(c.Lustre, slog.New(slog.NewTextHandler(&b, nil)))
	if err != nil {
		t.Fatal(err)
	}
	striper.Prepare(dir)
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := striper.Describe(path); got != "" && b.String() == "" {
		t.Errorf("described as %q, and logged %q", got, b.String())
	}
	c.Lustre.Setstripe = "-c x"
	if _, err := newStriper(c.Lustre, slog.New(slog.NewTextHandler(&b, nil))); !errors.Is(err, layout.ErrOption) {
		t.Errorf("a bad line: %v", err)
	}
}

// TestRefusesWrites: a directory that the rank can read and not write to is noticed at
// the start, not when the first block is lost.
func TestRefusesWrites(t *testing.T) {
	dir := t.TempDir()
	refused := func(err error) segment.Access {
		return segment.Access{NoDirect: fmt.Errorf("open %s/probe: %w", dir, err)}
	}
	for name, tc := range map[string]struct {
		dir  string
		a    segment.Access
		want error
	}{
		"writable":       {dir, segment.Access{Direct: true}, nil},
		"no direct I/O":  {dir, refused(unix.EINVAL), nil},
		"not this user":  {dir, refused(unix.EACCES), fs.ErrPermission},
		"read-only":      {dir, refused(unix.EROFS), unix.EROFS},
		"over its quota": {dir, refused(unix.EDQUOT), unix.EDQUOT},
		"gone":           {filepath.Join(dir, "none"), segment.Access{Direct: true}, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			if err := refusesWrites(tc.dir, tc.a); (err == nil) != (tc.want == nil) || !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}
