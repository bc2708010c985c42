package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/cli"
	"cascadekv/internal/preflight"
)

// TestDoctorOnGPUs: doctor reports what cascade-gpu finds, and nothing where that is not installed
// or finds no driver.
func TestDoctorOnGPUs(t *testing.T) {
	const (
		rungs = `"ladder":[{"trigger":"ptx","works":false,"why":"no kernel"},{"trigger":"memop","works":true},{"trigger":"cpu","works":true}]`
		works = `{"number":0,"name":"H200","bytes":1099511627776,"free_bytes":536870912,"numa_node":1,"trigger":"memop",` + rungs + `}`
	)
	report := func(driver, gpus, problems string) string {
		return fmt.Sprintf("echo '{\"driver\":{%s},\"gpus\":[%s],\"machine\":{\"problems\":[%s]}}'", driver, gpus, problems)
	}
	for name, c := range map[string]struct {
		script string
		want   []string // verdict, name and a part of the detail, by check
	}{
		"no driver":           {report(`"found":false,"problem":"no CUDA driver"`, "", ""), nil},
		"a driver, no GPU":    {report(`"found":true,"problem":"CUDA_ERROR_NO_DEVICE"`, "", ""), []string{"warn|gpu driver|CUDA_ERROR_NO_DEVICE"}},
		"a GPU":               {report(`"found":true,"cuda":"13.0"`, works, ""), []string{"ok|gpu driver|CUDA 13.0, 1 GPUs", "ok|gpu 0|H200, 1.00 TiB, 512 MiB of it free, NUMA node 1; trigger of I/O: memop (not ptx: no kernel)"}},
		"a GPU with a defect": {report(`"found":true,"cuda":"13.0"`, `{"number":3,"name":"H200","problem":"CUDA_ERROR_OUT_OF_MEMORY"}`, `{"index":5,"uuid":"GPU-5","problem":"reset it"}`), []string{"ok|gpu driver|", "warn|gpu 3|CUDA_ERROR_OUT_OF_MEMORY", "warn|gpu health|GPU 5 of the node, GPU-5: reset it"}},
		"it fails":            {"echo broken >&2; exit 3", []string{"warn|gpu driver|exit status 3: broken"}},
		"no JSON":             {"echo hello", []string{"warn|gpu driver|invalid character"}},
		"other arguments":     {`[ "$*" = "probe --json" ] || echo; exit 1`, []string{"warn|gpu driver|exit status 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			fakeBench(t, gpuProgram, c.script)
			a := &app{env: os.Environ()}
			got := a.checkGPUs(t.Context())
			if len(got) != len(c.want) {
				t.Fatalf("%+v, want %q", got, c.want)
			}
			for i, want := range c.want {
				parts := strings.SplitN(want, "|", 3)
				if got[i].Verdict != preflight.Verdict(parts[0]) || got[i].Name != parts[1] || !strings.Contains(got[i].Detail, parts[2]) {
					t.Errorf("%+v, want %s", got[i], want)
				}
				if got[i].Verdict == preflight.Warn && got[i].Remedy == "" {
					t.Errorf("no remedy: %+v", got[i])
				}
			}
		})
	}
	fakeBench(t, "another", "")
	if got := (&app{}).checkGPUs(t.Context()); got != nil {
		t.Errorf("without the program: %+v", got)
	}
	fakeBench(t, gpuProgram, "while :; do :; done")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := (&app{env: os.Environ()}).checkGPUs(ctx); len(got) != 1 || !strings.Contains(got[0].Detail, "did not end") {
		t.Errorf("a program that hangs: %+v", got)
	}
	fakeBench(t, gpuProgram, report(`"found":true,"cuda":"13.0"`, works, ""))
	if got := cascadeCommand("", os.Environ(), "doctor"); got.status == cli.Usage || !strings.Contains(got.out, "ok    gpu 0 ") {
		t.Errorf("doctor: %+v", got)
	}
}
