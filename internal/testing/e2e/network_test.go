package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// TestReadsBesideIperf3: the bench reads blocks of 4 MiB of another rank and runs iperf3 over the same network, in turns. How
// fast they are depends on what else runs, so only the bench's own checks of bytes and counts are the test's.
func TestReadsBesideIperf3(t *testing.T) {
	needNamespaces(t)
	testneed.Program(t, "iperf3", "make tools, or install iperf3")
	out, err := exec.Command(filepath.Join(bin, "cascade-bench"), "network", "--json", "--rounds", "2").Output()
	if err != nil {
		var said []byte
		if e, ok := err.(*exec.ExitError); ok {
			said = e.Stderr
		}
		t.Fatalf("%v: %s", err, said)
	}
	t.Logf("%s", out)
	var res struct {
		Bytes   int       `json:"bytes"`
		Callers int       `json:"callers"`
		Read    float64   `json:"read_gbps"`
		IPerf3  float64   `json:"iperf3_gbps"`
		Ratios  []float64 `json:"ratios"`
	}
	if err := json.Unmarshal(out, &res); err != nil || res.Bytes != 4<<20 || res.Callers != 8 || res.Read <= 0 || res.IPerf3 <= 0 || len(res.Ratios) != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
}

// needNamespaces skips the test where it can not make network namespaces.
func needNamespaces(t *testing.T) {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to make network namespaces", "run this test as root")
	testneed.Program(t, "ip", "make tools, or install iproute2")
}
