package lustretest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/guest"
)

// packageRun is a run of one binary of tests in a guest.
type packageRun struct {
	binary string
	folder string // of the package, where its testdata is
	run    string // -test.run; "" for all
	skip   string // -test.skip; "" for none
	why    string // what is left out, and why that loses nothing here
}

// packageRuns are the packages that work on files, and those tests of the
// daemons in which ranks share a directory: each reads the segments of others
// and of those who were there before it.
var packageRuns = map[string]packageRun{
	"tier": {binary: "tier.test", folder: "tiers/lustre"},
	"segment": {
		binary: "segment.test", folder: "lustre/segment",
		skip: "^(" + strings.Join([]string{
			"TestBitFlips", "TestZeroedEverywhere", "TestSilentCorruption", "TestMergeFails",
			"TestFaultAtEveryOperation", "TestCrashAtEveryOperation", "TestCrashAfterCrash", "TestPowerCutAfterRestart",
			"TestBreakerOfManyFiles",
		}, "|") + ")$",
		why: "minutes of damage to files that lie still, and of file systems, crashes and clocks that are simulated",
	},
	"layout": {binary: "layout.test", folder: "lustre/layout"},
	"ranks": {
		binary: "e2e.test", folder: "internal/testing/e2e", run: "^(TestTwoRanksOneDirectory|TestTermDrainsToLustre)$",
		why: "other tests of the daemons have no directory of segments, or three ranks and more and two minutes (make test-lustre-long)",
	},
}

// longRanks are the tests of the daemons that a long run has besides.
const longRanks = "^(TestRestartUndoesNothing|TestTermOneOfFour)$"

// TestPackages runs tests of packages with their temporary folders on Lustre,
// each in a folder of its own.
func TestPackages(t *testing.T) {
	t.Parallel()
	m := machine(t)
	runs := maps.Clone(packageRuns)
	if os.Getenv(runVariable) == "long" {
		runs["more ranks"] = packageRun{binary: "e2e.test", folder: "internal/testing/e2e", run: longRanks}
	}
	for name, p := range runs {
		t.Run(name, func(t *testing.T) { p.on(t, m, "/mnt/lustre/"+strings.ReplaceAll(name, " ", "-")) })
	}
}

var passed = regexp.MustCompile(`(?m)^ *--- PASS`)

func (p packageRun) on(t *testing.T, m *guest.Machine, dir string) {
	source, err := filepath.Abs(filepath.Join("..", "..", "..", p.folder))
	if err != nil {
		t.Fatal(err)
	}
	command := []string{
		"mkdir", "-p", dir, "&&", "chmod", "1777", dir, "&&", "cd", guest.Host(source), "&&",
		"TMPDIR=" + dir, "CASCADE_LUSTRE=" + dir, "CASCADE_E2E_BIN=" + guest.Host(bin), "CI=", "GOMEMLIMIT=256MiB",
		guest.Host(filepath.Join(bin, p.binary)), "-test.v", "-test.timeout=4m", "-test.count=1",
	}
	if p.run != "" {
		command = append(command, "-test.run='"+p.run+"'")
	}
	if p.skip != "" {
		command = append(command, "-test.skip='"+p.skip+"'")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := m.Run(ctx, strings.Join(command, " "))
	if err != nil {
		t.Fatal(err)
	}
	n := len(passed.FindAllString(r.Output, -1))
	if r.Status != 0 || n == 0 {
		t.Errorf("status %d, %d tests passed:\n%s", r.Status, n, r.Output)
	}
	var skipped []string
	for _, line := range strings.Split(r.Output, "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: "); ok {
			skipped = append(skipped, name)
		}
	}
	t.Logf("%d tests and subtests passed on Lustre; skipped there: %v; left out: %s", n, skipped, strings.TrimSpace(fmt.Sprint(p.skip, " ", p.why)))
	summary(t, "package", map[string]any{"package": p.folder, "passed": n, "skipped": skipped})
}
