package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/need"
)

// pythonTests is where the protocol tests in Python lie.
const pythonTests = "../../clients/python/tests"

// exitSkip is how such a test says that it cannot run here.
const exitSkip = 77

// suitePatience bounds one of these programs.
const suitePatience = 5 * time.Minute

// pythons are the interpreters that the suites run with, for the sake of their
// redis-py: the distribution's old one and a current one.
func pythons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	if path, err := exec.LookPath("/usr/bin/python3"); err == nil {
		found["distribution"] = path
	} else {
		found["distribution"] = need.Program(t, "python3", "apt-get install python3")
	}
	script, err := os.ReadFile("../../scripts/tools.sh")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^redis_py=(\S+)`).FindSubmatch(script)
	if version == nil {
		t.Fatal("scripts/tools.sh names no version of redis-py")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	found["current"] = filepath.Join(cache, "cascade", "redis-py-"+string(version[1]), "bin", "python")
	return found
}

// TestPythonClients runs each test program with each Python, against a rank of
// its own.
func TestPythonClients(t *testing.T) {
	long(t)
	suites, err := filepath.Glob(filepath.Join(pythonTests, "test_*.py"))
	if err != nil || len(suites) == 0 {
		t.Fatalf("no tests in %s: %v", pythonTests, err)
	}
	for name, python := range pythons(t) {
		t.Run(name, func(t *testing.T) {
			_, err := os.Stat(python)
			need.That(t, err == nil, python, "make tools")
			for _, suite := range suites {
				t.Run(strings.TrimSuffix(filepath.Base(suite), ".py"), func(t *testing.T) { runSuite(t, python, suite) })
			}
		})
	}
}

func runSuite(t *testing.T, python, suite string) {
	address := freePort(t)
	r := start(t, newPlace(t, "256MiB"), "--listen", address)
	_, port, _ := net.SplitHostPort(address)
	ctx, cancel := context.WithTimeout(t.Context(), suitePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, suite)
	cmd.Env = append(cleanEnv(), "CASCADE_SOCKET="+r.socket, "CASCADE_PORT="+port, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if cmd.ProcessState.ExitCode() == exitSkip {
		last := said[strings.LastIndexByte(said, '\n')+1:]
		need.That(t, false, "a component of "+filepath.Base(suite), last)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, said)
	}
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "Ran ") || strings.HasPrefix(line, "redis-py ") || strings.HasPrefix(line, "SKIP") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func TestRedisCLI(t *testing.T) {
	cli := need.Program(t, "redis-cli", "apt-get install redis-tools")
	address := freePort(t)
	r := start(t, newPlace(t, "64MiB"), "--listen", address)
	_, port, _ := net.SplitHostPort(address)
	for name, where := range map[string][]string{"unix": {"-s", r.socket}, "tcp": {"-p", port}, "resp3": {"-3", "-p", port}} {
		t.Run(name, func(t *testing.T) {
			for _, step := range []struct {
				args []string
				want string
			}{
				{[]string{"PING"}, "PONG"},
				{[]string{"SET", "k-" + name, "value " + name}, "OK"},
				{[]string{"GET", "k-" + name}, "value " + name},
				{[]string{"EXISTS", "k-" + name, "none"}, "1"},
				{[]string{"GET", "none"}, ""},
				{[]string{"INFO", "replication"}, "role:master"},
				{[]string{"DEL", "k-" + name}, "1"},
			} {
				status, out, said := finish(t, cli, append(where, step.args...)...)
				if status != 0 || step.want != "" && !strings.Contains(out, step.want) || step.want == "" && strings.TrimSpace(out) != "" {
					t.Errorf("%v: status %d, printed %q %q, want %q", step.args, status, out, said, step.want)
				}
			}
		})
	}
}

// TestTool walks through the operator's tool against a running rank.
func TestTool(t *testing.T) {
	r := start(t, newPlace(t, "64MiB"))
	file := filepath.Join(r.dir, "value")
	if err := os.WriteFile(file, content("tool", 1, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"put", "--key", "k", file}, 0, ""},
		{[]string{"get", "k", "-o", file + ".back"}, 0, ""},
		{[]string{"get", "none"}, 3, ""},
		{[]string{"status", "--json"}, 0, `"blocks"`},
	} {
		status, out, said := finish(t, program("cascade"), append(step.args, "--socket", r.socket)...)
		if status != step.status || !strings.Contains(out, step.want) {
			t.Errorf("%v: status %d, want %d; printed %s%s", step.args, status, step.status, out, said)
		}
	}
	back, err := os.ReadFile(file + ".back")
	if err != nil || string(back) != string(content("tool", 1, 100_000)) {
		t.Errorf("%d bytes came back, %v", len(back), err)
	}
}
