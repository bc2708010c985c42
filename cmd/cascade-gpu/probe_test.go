package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/cmd/cascade-bench/giobench"
	"cascadekv/gpu/cuda"
	"cascadekv/gpu/nvml"
	"cascadekv/internal/testing/fakecuda"
)

func TestMain(m *testing.M) {
	giobench.DeviceMain()
	os.Exit(fakecuda.Main(m))
}

// probed runs the verb, which must succeed.
func probed(t *testing.T, args ...string) (r report, table string) {
	t.Helper()
	for _, flags := range [][]string{{"--json"}, nil} {
		var out, errs bytes.Buffer
		a := &app{out: &out, err: &errs}
		if status := a.run(t.Context(), append(append([]string{"probe"}, args...), flags...)); status != 0 {
			t.Fatalf("exit status %d: %s", status, &errs)
		}
		if flags == nil {
			table = out.String()
		} else if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, &out)
		}
	}
	return r, table
}

func TestProbeWithoutDriver(t *testing.T) {
	r, table := probed(t, "--library", filepath.Join(t.TempDir(), "none.so"))
	if r.Driver.Found || len(r.GPUs) != 0 || !strings.HasPrefix(r.Driver.Problem, "no CUDA driver") {
		t.Errorf("without a driver: %+v", r)
	}
	if !strings.Contains(table, "no CUDA driver") || !strings.Contains(table, "trigger: cpu") {
		t.Errorf("the table says %q", table)
	}
}

func TestProbe(t *testing.T) {
	r, table := probed(t, "--library", fakecuda.Library(t))
	if !r.Driver.Found || r.Driver.CUDA != "13.0" || len(r.GPUs) != 1 {
		t.Fatalf("the driver: %+v", r)
	}
	g := r.GPUs[0]
	if g.Name != "no GPU (fake 0)" || g.Capability != "9.0" || g.PCI != "0000:01:00.0" || g.Free <= 0 || g.Free > g.Bytes || g.Problem != "" {
		t.Errorf("the GPU: %+v", g)
	}
	if g.Trigger != triggerMemop || len(g.Ladder) != 3 || g.Ladder[0].Works || g.Ladder[0].Why == "" || !g.Ladder[1].Works || !g.Ladder[2].Works {
		t.Errorf("the ladder: %+v", g)
	}
	if !strings.Contains(table, "GPU 0, memop: works") || !strings.Contains(table, "GPU 0, ptx: not used: this build has no kernel") {
		t.Errorf("the table says\n%s", table)
	}
}

// TestLadder tries that each reason takes a GPU one trigger down, and that the
// report has it.
func TestLadder(t *testing.T) {
	for name, c := range map[string]struct {
		rules, connections, why string
		patience                time.Duration
	}{
		"one connection":  {connections: "1", why: "CUDA_DEVICE_MAX_CONNECTIONS is 1"},
		"not supported":   {rules: "cuStreamWaitValue32_v2=801", why: "CUDA_ERROR_NOT_SUPPORTED"},
		"it never ends":   {rules: "wait~300", patience: 20 * time.Millisecond, why: "did not end in time"},
		"the copy fails":  {rules: "write=719", why: "CUDA_ERROR_LAUNCH_FAILED"},
		"no context":      {rules: "cuDevicePrimaryCtxRetain=2", why: "CUDA_ERROR_OUT_OF_MEMORY"},
		"no registration": {rules: "cuMemHostRegister_v2=801", why: "cuMemHostRegister_v2"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cuda.Open(fakecuda.Library(t)); err != nil {
				t.Fatal(err)
			}
			fakecuda.Rules(t, c.rules)
			t.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", c.connections)
			if c.patience > 0 { // the probe leaves its context to what is under way
				t.Cleanup(func() { release(t) })
			}
			p := prober{library: fakecuda.Library(t), sys: t.TempDir(), patience: cmp.Or(c.patience, 10*time.Second), manage: managed}
			g := p.probe().GPUs[0]
			if g.Trigger != triggerCPU || g.Ladder[1].Works || !strings.Contains(g.Ladder[1].Why, c.why) {
				t.Errorf("%+v, want the trigger cpu and %q", g, c.why)
			}
		})
	}
}

func TestNoGPU(t *testing.T) {
	if _, err := cuda.Open(fakecuda.Library(t)); err != nil {
		t.Fatal(err)
	}
	fakecuda.Rules(t, "cuInit=100")
	r, _ := probed(t, "--library", fakecuda.Library(t))
	if !r.Driver.Found || !strings.Contains(r.Driver.Problem, "CUDA_ERROR_NO_DEVICE") {
		t.Errorf("a driver without a GPU: %+v", r)
	}
}

func TestLink(t *testing.T) {
	sys := t.TempDir()
	dir := filepath.Join(sys, "bus/pci/devices/0000:01:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"numa_node": "1\n", "local_cpulist": "8-15\n", "current_link_speed": "32.0 GT/s PCIe\n", "current_link_width": "16\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := prober{sys: sys}
	if l := p.link("0000:01:00.0"); l != (link{NUMANode: 1, CPUs: "8-15", Speed: "32.0 GT/s PCIe", Width: 16}) {
		t.Errorf("%+v", l)
	}
	if l := p.link("0000:02:00.0"); l != (link{NUMANode: -1, Width: -1}) {
		t.Errorf("of a GPU that sysfs has not: %+v", l)
	}
}

// release gives back a context that somebody has left.
func release(t *testing.T) {
	d, err := cuda.Open(fakecuda.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Retain()
	if err = errors.Join(err, c.Release(), c.Release()); err != nil {
		t.Error(err)
	}
}

// TestMachine tries that a report has what the management library found, beside
// a driver that is missing, and what is wrong.
func TestMachine(t *testing.T) {
	p := prober{sys: t.TempDir(), library: filepath.Join(t.TempDir(), "none.so"), manage: func() ([]nvml.GPU, [][]nvml.Distance, error) {
		return []nvml.GPU{{Name: "H200", UUID: "GPU-1", MIG: true, Parts: make([]nvml.Part, 2), Health: nvml.Health{Pending: true}}}, [][]nvml.Distance{{nvml.SameBoard}}, nil
	}}
	r := p.probe()
	if !r.Machine.Found || r.Machine.Problem != "" || len(r.Machine.GPUs) != 1 || len(r.Machine.Distances) != 1 ||
		len(r.Machine.Problems) != 1 || r.Machine.Problems[0].UUID != "GPU-1" || !strings.Contains(r.Machine.Problems[0].Problem, "next reset") {
		t.Errorf("%+v", r.Machine)
	}
	var out bytes.Buffer
	if err := (&app{out: &out}).print(r); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "GPU-1") || !strings.Contains(out.String(), "next reset") || !strings.Contains(out.String(), "no CUDA driver") {
		t.Errorf("the table says\n%s", &out)
	}
	p.manage = func() ([]nvml.GPU, [][]nvml.Distance, error) { return nil, nil, nvml.ErrNoLibrary }
	if r := p.probe(); r.Machine.Found || r.Machine.Problem == "" {
		t.Errorf("without the library: %+v", r.Machine)
	}
}
