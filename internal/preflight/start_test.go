package preflight

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/units"
)

// TestStartAsksTheNodeAlone: a start touches neither lustre.dir nor what takes
// long, and a node where nothing is wrong passes.
func TestStartAsksTheNodeAlone(t *testing.T) {
	m, c := healthy(t)
	statfs := m.statfs
	m.statfs = func(path string) (unix.Statfs_t, error) {
		if path == c.Lustre.Dir {
			t.Errorf("a start looks at %s", path)
		}
		return statfs(path)
	}
	m.tryHuge = func(string) error { t.Error("a start makes huge pages"); return nil }
	var names []string
	for _, found := range m.within(c, startQuestions(), time.Minute) {
		names = append(names, found.Name)
		if found.Verdict != OK || found.NoStart {
			t.Errorf("%+v", found)
		}
	}
	if want := []string{"shared memory", "memory", "open files", "socket"}; !slices.Equal(names, want) {
		t.Errorf("a start asks %q, want %q", names, want)
	}
}

// TestStartDoesNotHang: a check without an answer is a warning, and the others
// are answered.
func TestStartDoesNotHang(t *testing.T) {
	m, c := healthy(t)
	released := make(chan bool)
	defer close(released)
	m.statfs = func(string) (unix.Statfs_t, error) { <-released; return unix.Statfs_t{}, unix.EIO }
	began := time.Now()
	found := m.Start(c)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if len(found) != 4 || found[0].Verdict != Warn || found[0].NoStart || !strings.Contains(found[0].Detail, "not answered within 100ms") {
		t.Errorf("%+v", found)
	}
}

// TestNoStart: a start ends where a rank cannot live, and nowhere else.
func TestNoStart(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil   func(*Machine, *config.Config)
		noStart bool
	}{
		"healthy":            {func(*Machine, *config.Config) {}, false},
		"limit below shm":    {func(_ *Machine, c *config.Config) { c.Shm.Bytes = 20 * units.GiB }, false},
		"shm is too small":   {func(_ *Machine, c *config.Config) { c.Shm.Bytes = 9 * units.GiB }, false},
		"few files":          {func(_ *Machine, c *config.Config) { c.MaxConnections = 1e6 }, false},
		"limit below a rank": {func(m *Machine, _ *config.Config) { limitTo(t, m, "50000000") }, true},
		"no shm": {func(m *Machine, _ *config.Config) {
			m.statfs = func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOENT }
		}, true},
		"no directory for the socket": {func(_ *Machine, c *config.Config) {
			file := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			c.Socket = filepath.Join(file, "s")
		}, true},
	} {
		m, c := healthy(t)
		tc.spoil(&m, c)
		found := m.within(c, startQuestions(), time.Minute)
		if got := slices.ContainsFunc(found, func(c Check) bool { return c.NoStart }); got != tc.noStart {
			t.Errorf("%s: no start is %v in %+v", name, got, found)
		}
	}
}

// limitTo sets the limit of the job that healthy makes up.
func limitTo(t *testing.T, m *Machine, limit string) {
	t.Helper()
	plant(t, m.root, map[string]string{"sys/fs/cgroup/system.slice/job_1/memory.max": limit + "\n"})
}

// TestRemediesThatFit: a size in a remedy is one that a rank takes, and that
// fits; where there is none, no size is named.
func TestRemediesThatFit(t *testing.T) {
	named := regexp.MustCompile(`at most ([^,]*),`)
	for name, c := range map[string]struct {
		free  uint64 // in /dev/shm
		limit string // of the job
		want  string // of all sizes that are named, in order
	}{
		"rounded down":        {63<<20 + 1023<<10, "17179869184", "63MiB"},
		"nothing free":        {0, "17179869184", ""},
		"less than an arena":  {3 << 20, "17179869184", ""},
		"the least arena":     {4 << 20, "17179869184", "4MiB"},
		"limit of 200 MiB":    {8 << 30, "209715200", "150MiB"},
		"limit of 64 MiB":     {8 << 30, "67108864", "32MiB"},
		"limit for host only": {8 << 30, "134217728", ""},
	} {
		m, conf := healthy(t)
		limitTo(t, &m, c.limit)
		m.statfs = func(string) (unix.Statfs_t, error) {
			return unix.Statfs_t{Type: unix.TMPFS_MAGIC, Bsize: 4096, Blocks: 2 << 20, Bavail: c.free / 4096}, nil
		}
		if name == "limit for host only" {
			conf.Host.Bytes = 128 * units.MiB
		}
		var got []string
		for _, found := range m.within(conf, startQuestions(), time.Minute) {
			if found.Verdict == Fail && found.Remedy == "" {
				t.Errorf("%s: %+v has no remedy", name, found)
			}
			for _, hit := range named.FindAllStringSubmatch(found.Remedy, -1) {
				got = append(got, hit[1])
				if _, err := units.ParseBytes(hit[1]); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: sizes %q, want %q", name, got, c.want)
		}
	}
}

// TestLeft: a rank keeps some of its limit for itself.
func TestLeft(t *testing.T) {
	for limit, kept := range map[string]int64{"67108864": 32 << 20, "209715200": 209715200 / 4, "17179869184": 256 << 20} {
		m, _ := healthy(t)
		limitTo(t, &m, limit)
		plant(t, m.root, map[string]string{"sys/fs/cgroup/system.slice/job_1/memory.current": "1048576\n"})
		bytes, err := units.ParseBytes(limit)
		if err != nil {
			t.Fatal(err)
		}
		if left, of := m.Left(); left != int64(bytes)-1<<20-kept || !strings.Contains(of, "job_1") {
			t.Errorf("of %s %d bytes are left of %q", limit, left, of)
		}
	}
	m, _ := healthy(t)
	limitTo(t, &m, "1000")
	plant(t, m.root, map[string]string{"sys/fs/cgroup/system.slice/job_1/memory.current": "2000\n"})
	if left, _ := m.Left(); left != 0 {
		t.Errorf("%d bytes are left of nothing", left)
	}
}
