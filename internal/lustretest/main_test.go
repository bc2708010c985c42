package lustretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/guest"
)

// Variables of these tests.
const (
	runVariable     = "CASCADE_TEST_LUSTRE"   // "1" or "long": run guests; scripts/test-lustre sets it
	programVariable = "CASCADE_GUEST_PROGRAM" // what this binary does in a guest
	powerVariable   = "CASCADE_POWERCUTS"     // points of TestPowerCut
	serverVariable  = "CASCADE_SERVERCUTS"    // points of TestServerCut
	seedVariable    = "CASCADE_SEED"          // of the points' times
)

// bin is the folder of the programs that guests run.
var bin string

func TestMain(m *testing.M) {
	programs := map[string]func([]string) error{"storm": runStorm, "verify": runVerify, "commit": runCommit, "fill": runFill, "pulse": runPulse}
	if program := os.Getenv(programVariable); program != "" {
		if err := programs[program](os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(buildAndRun(m))
}

// buildAndRun builds static programs where guests will run.
func buildAndRun(m *testing.M) int {
	if os.Getenv(runVariable) == "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "lustretest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	err = os.Chmod(dir, 0o755) // some run as another user
	if err == nil {
		err = build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build what runs in guests:", err)
		return 1
	}
	return m.Run()
}

// tested are the packages whose own tests run in a guest, by the name of their
// binary.
var tested = map[string]string{
	"tier.test":    "cascadekv/lustre",
	"segment.test": "cascadekv/lustre/segment",
	"layout.test":  "cascadekv/lustre/layout",
	"e2e.test":     "cascadekv/internal/e2e",
	"self.test":    "cascadekv/internal/lustretest",
}

func build() error {
	for name, pkg := range tested {
		if err := static("test", "-c", "-o", filepath.Join(bin, name), pkg); err != nil {
			return err
		}
	}
	return static("build", "-o", bin+"/", "cascadekv/cmd/cascaded", "cascadekv/cmd/cascade", "cascadekv/cmd/cascade-bench")
}

func static(args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// equipment finds what guests need. With CI=true it must be there, once
// scripts/test-lustre has decided that guests are to run.
func equipment(t *testing.T) *guest.Equipment {
	t.Helper()
	if os.Getenv(runVariable) == "" {
		t.Skip("make test-lustre runs this: it starts guests with a real Lustre")
	}
	e, err := guest.Find(t.Context())
	if errors.Is(err, guest.ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// machine starts a guest for one test.
func machine(t *testing.T) *guest.Machine {
	t.Helper()
	m, err := equipment(t).NewMachine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, m.End()) })
	return m
}

// pair starts servers and client on two machines.
func pair(t *testing.T) *guest.Pair {
	t.Helper()
	p, err := equipment(t).NewPair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ended(t, p.End()) })
	return p
}

func ended(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// runner is a guest's way to run a command.
type runner func(ctx context.Context, command string) (guest.Result, error)

// must runs a command that has to succeed and returns its output.
func must(t *testing.T, run runner, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := run(ctx, command)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != 0 {
		t.Fatalf("%s: status %d: %s", command, r.Status, r.Output)
	}
	return r.Output
}

// self is the command line for a program of this binary in a guest.
func self(program string, args ...string) string {
	return fmt.Sprintf("%s=%s %s %s", programVariable, program, guest.Host(filepath.Join(bin, "self.test")), strings.Join(args, " "))
}

// verify runs the program verify on a campaign.
func verify(t *testing.T, run runner, c campaign) (v verdict) {
	t.Helper()
	out := must(t, run, self("verify", c.flags()...))
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("verify: %v: %s", err, out)
	}
	return v
}

// campaign is a directory in a guest with the journals of those who filled it.
type campaign struct {
	dir  string // in the guest
	host string // folder of journals and of files that signal something
}

// newCampaign makes the host's folder, in memory where that is possible: the
// guest stands still while the host syncs a file.
func newCampaign(t *testing.T, dir string) campaign {
	t.Helper()
	parent := "/dev/shm"
	if !exists(parent) {
		parent = ""
	}
	host, err := os.MkdirTemp(parent, "lustretest-")
	if err == nil {
		err = os.Chmod(host, 0o777) // a storm may run as another user
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(host) })
	return campaign{dir, host}
}

func (c campaign) flags(more ...string) []string {
	return append([]string{"-dir", c.dir, "-journals", guest.Host(c.host)}, more...)
}

// number reads a count from the environment.
func number(t *testing.T, variable string, standard int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// summary logs figures as one line of JSON.
func summary(t *testing.T, what string, figures any) {
	t.Helper()
	p, err := json.Marshal(map[string]any{what: figures})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("summary %s", p)
}
