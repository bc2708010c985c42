package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
	dir := t.TempDir()
	r, table := probed(t, "--library", fakecuda.Library(t), "--cufile", fakecuda.Library(t), "--dir", dir)
	if !r.Driver.Found || !r.Driver.Emulated || r.Driver.CUDA != "13.0" || len(r.GPUs) != 1 {
		t.Fatalf("the driver: %+v", r)
	}
	g := r.GPUs[0]
	if g.Name != "no GPU (fake 0)" || g.Capability != "9.0" || g.PCI != "0000:01:00.0" || g.Free <= 0 || g.Free > g.Bytes || g.Problem != "" {
		t.Errorf("the GPU: %+v", g)
	}
	if want := []rung{{triggerPTX, true, ""}, {triggerMemop, true, ""}, {triggerCPU, true, ""}}; g.Trigger != triggerPTX || !slices.Equal(g.Ladder, want) {
		t.Errorf("the ladder: %+v", g)
	}
	if want := (ring{UnitSMs: 2, WarpsPerSM: 64, ThreadsPerWarp: 32, NumIOCTX: 2048, Engine: g.Ring.Engine}); g.Ring != want || g.Ring.Engine == "" {
		t.Errorf("the ring: %+v, want %+v", g.Ring, want)
	}
	if want := (green{Works: true, SMs: 20, Least: 2, Granularity: 2}); g.Green != want {
		t.Errorf("green contexts: %+v, want %+v", g.Green, want)
	}
	if !r.Direct.Found || !r.Direct.Works || r.Direct.Dir != dir || r.Direct.Path == "" {
		t.Errorf("cuFile: %+v", r.Direct)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the probe left %v, %v", left, err)
	}
	for _, want := range []string{"emulated", "GPU 0, memop: works", "GPU 0, ptx: works", "2048 I/Os of an IOCB", "from 2 SMs of 20 on, in steps of 2", "cuFile: takes files in " + dir} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

// TestDocumentedFields: what the report has of a ring, of green contexts and of cuFile is in docs/gpu.md.
func TestDocumentedFields(t *testing.T) {
	text, err := os.ReadFile("../../docs/gpu.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []any{ring{}, green{}, direct{}, rung{}} {
		for i := range reflect.TypeOf(part).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(part).Field(i).Tag.Get("json"), ",")
			if name == "" || !bytes.Contains(text, []byte("`"+name+"`")) {
				t.Errorf("docs/gpu.md lacks %q of %T", name, part)
			}
		}
	}
}

// TestLadder tries that each reason takes a GPU one trigger down, or both, and that the
// report has it.
func TestLadder(t *testing.T) {
	const slow, quick = 10 * time.Second, 50 * time.Millisecond
	for name, c := range map[string]struct {
		rules, connections string
		patience           time.Duration
		leaves             bool // its context, to what is under way
		ptx, memop         string
	}{
		"one connection":          {connections: "1", ptx: "CUDA_DEVICE_MAX_CONNECTIONS is 1", memop: "CUDA_DEVICE_MAX_CONNECTIONS is 1"},
		"no memory operations":    {rules: "cuStreamWaitValue32_v2=801", memop: "CUDA_ERROR_NOT_SUPPORTED"},
		"one never ends":          {rules: "wait~300", patience: quick, leaves: true, ptx: "not tried", memop: "did not end in time"},
		"one fails":               {rules: "write=719", ptx: "CUDA_ERROR_LAUNCH_FAILED", memop: "CUDA_ERROR_LAUNCH_FAILED"},
		"no context":              {rules: "cuDevicePrimaryCtxRetain=2", ptx: "CUDA_ERROR_OUT_OF_MEMORY", memop: "CUDA_ERROR_OUT_OF_MEMORY"},
		"no registration":         {rules: "cuMemHostRegister_v2=801", ptx: "cuMemHostRegister_v2", memop: "cuMemHostRegister_v2"},
		"no compiler":             {rules: "cuModuleLoadData=221", ptx: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"},
		"an old driver":           {rules: "cuModuleLoadData=222", ptx: "a newer driver has it"},
		"it does not unload":      {rules: "cuModuleUnload=1", ptx: "cuModuleUnload"},
		"no launch":               {rules: "cuLaunchKernel=701", ptx: "LAUNCH_OUT_OF_RESOURCES"},
		"the kernel fails":        {rules: "launch=700", ptx: "CUDA_ERROR_ILLEGAL_ADDRESS"},
		"the kernel does nothing": {rules: "launch~1000", patience: 4 * quick, leaves: true, ptx: "did not end in time"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cuda.Open(fakecuda.Library(t)); err != nil {
				t.Fatal(err)
			}
			fakecuda.Rules(t, c.rules)
			t.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", c.connections)
			if c.leaves {
				t.Cleanup(func() { release(t) })
			}
			p := prober{library: fakecuda.Library(t), fileLibrary: fakecuda.Library(t), sys: t.TempDir(), dir: t.TempDir(), patience: cmp.Or(c.patience, slow), manage: managed}
			g := p.probe().GPUs[0]
			for i, want := range []string{c.ptx, c.memop} {
				if rung := g.Ladder[i]; rung.Works != (want == "") || !strings.Contains(rung.Why, want) {
					t.Errorf("%+v, want it not to work for %q", rung, want)
				}
			}
			want := triggerCPU
			if c.ptx == "" {
				want = triggerPTX
			} else if c.memop == "" {
				want = triggerMemop
			}
			if g.Trigger != want {
				t.Errorf("the trigger %s, want %s", g.Trigger, want)
			}
		})
	}
}

// TestSlowNeighbour: beside a GPU that still works for the probe no other is tried.
func TestSlowNeighbour(t *testing.T) {
	p := prober{library: fakecuda.Library(t), fileLibrary: fakecuda.Library(t), sys: t.TempDir(), dir: t.TempDir(), patience: 10 * time.Second, manage: managed, slow: errSlow}
	g := p.probe().GPUs[0]
	if g.Trigger != triggerCPU || !strings.Contains(g.Problem, "not tried beside another GPU") || g.Free != 0 || g.Green.Works || g.Green.Why == "" || g.Ladder[0].Works || g.Ladder[1].Works {
		t.Errorf("%+v", g)
	}
}

// TestGreenReasons: a driver that can not set SMs apart is a reason, and triggers work all the same.
func TestGreenReasons(t *testing.T) {
	for name, c := range map[string]struct{ rules, why string }{
		"it has none":      {"cuDeviceGetDevResource=801", "CUDA_ERROR_NOT_SUPPORTED"},
		"no part":          {"cuDevSmResourceSplitByCount=914", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"},
		"no description":   {"cuDevResourceGenerateDesc=1", "cuDevResourceGenerateDesc"},
		"no green context": {"cuGreenCtxCreate=2", "CUDA_ERROR_OUT_OF_MEMORY"},
		"it does not end":  {"cuGreenCtxDestroy=999", "cuGreenCtxDestroy"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cuda.Open(fakecuda.Library(t)); err != nil {
				t.Fatal(err)
			}
			fakecuda.Rules(t, c.rules)
			p := prober{library: fakecuda.Library(t), fileLibrary: fakecuda.Library(t), sys: t.TempDir(), dir: t.TempDir(), patience: 10 * time.Second, manage: managed}
			g := p.probe().GPUs[0]
			if g.Green.Works || !strings.Contains(g.Green.Why, c.why) || g.Trigger != triggerPTX || g.Ring.UnitSMs != 2 {
				t.Errorf("%+v, want no green contexts for %q, and the trigger ptx", g, c.why)
			}
		})
	}
}

// TestDirect tries cuFile: the module decides the path, and what is missing or silent is a reason.
func TestDirect(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		rules, library, dir, path, why string
		patience                       time.Duration
		module, missing                bool
	}{
		"the module":          {module: true, path: pathModule},
		"without the module":  {path: pathCompatibility},
		"no library":          {library: none, why: "no cuFile library", missing: true},
		"no directory":        {dir: none, why: "name another directory", missing: true},
		"it does not open":    {rules: "cuFileDriverOpen=5001", why: "CU_FILE_DRIVER_NOT_INITIALIZED"},
		"it refuses the file": {rules: "cuFileHandleRegister=5008", why: "CU_FILE_IO_NOT_SUPPORTED"},
		"it does not answer":  {rules: "cuFileDriverOpen~300", patience: 20 * time.Millisecond, why: "did not answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := cuda.Open(fakecuda.Library(t)); err != nil {
				t.Fatal(err)
			}
			fakecuda.Rules(t, c.rules)
			p := prober{fileLibrary: cmp.Or(c.library, fakecuda.Library(t)), sys: t.TempDir(), dir: cmp.Or(c.dir, t.TempDir()), patience: cmp.Or(c.patience, 10*time.Second)}
			if c.module {
				if err := os.MkdirAll(filepath.Join(p.sys, "module/nvidia_fs"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			d := p.direct()
			if d.Works != (c.why == "") || d.Path != c.path || d.Module != c.module || d.Found == c.missing || !strings.Contains(d.Why, c.why) {
				t.Errorf("%+v, want the path %q, and %q", d, c.path, c.why)
			}
			if left, _ := os.ReadDir(p.dir); len(left) != 0 {
				t.Errorf("the probe left %v", left)
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
