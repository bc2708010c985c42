package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"cascadekv/internal/cli"
	"cascadekv/internal/preflight"
)

// gpuPatience bounds the wait for cascade-gpu: a context takes half a second, and a broken GPU may
// hang a call for ever.
const gpuPatience = 20 * time.Second

// gpuReport is what cascade-gpu probe --json prints, as far as doctor reads it.
type gpuReport struct {
	Driver struct {
		Found   bool   `json:"found"`
		CUDA    string `json:"cuda"`
		Problem string `json:"problem"`
	} `json:"driver"`
	GPUs []struct {
		Number   int    `json:"number"`
		Name     string `json:"name"`
		Bytes    int64  `json:"bytes"`
		Free     int64  `json:"free_bytes"`
		NUMANode int    `json:"numa_node"`
		Trigger  string `json:"trigger"`
		Problem  string `json:"problem"`
		Ladder   []struct {
			Trigger string `json:"trigger"`
			Works   bool   `json:"works"`
			Why     string `json:"why"`
		} `json:"ladder"`
	} `json:"gpus"`
	Machine struct {
		Problems []struct {
			Index   int    `json:"index"`
			UUID    string `json:"uuid"`
			Problem string `json:"problem"`
		} `json:"problems"`
	} `json:"machine"`
}

// checkGPUs asks cascade-gpu, which alone may load the driver. Where that program is not
// installed, or finds no driver, there is nothing to report.
func (a *app) checkGPUs(ctx context.Context) []check {
	const name = "gpu driver"
	path, err := cli.Find(gpuProgram)
	if err != nil {
		return nil
	}
	r, err := askGPUs(ctx, path, a.env)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return []check{preflight.Warning(name, "see whether nvidia-smi answers, and the kernel's log for Xid messages; a GPU that hangs needs a reset", "%s did not end within %v", path, gpuPatience)}
	case err != nil:
		return []check{preflight.Warning(name, "run "+path+" probe; it needs the C library of the node, and is of the version of this program", "%v", err)}
	case !r.Driver.Found:
		return nil
	case r.Driver.Problem != "":
		return []check{preflight.Warning(name, "see whether nvidia-smi finds the GPUs", "%s", r.Driver.Problem)}
	}
	checks := []check{preflight.Okay(name, "CUDA %s, %d GPUs that a process here sees", r.Driver.CUDA, len(r.GPUs))}
	for _, g := range r.GPUs {
		name := fmt.Sprintf("gpu %d", g.Number)
		if g.Problem != "" {
			checks = append(checks, preflight.Warning(name, "cascade gpu probe has all of it", "%s: %s", g.Name, g.Problem))
			continue
		}
		var not []string
		for _, rung := range g.Ladder {
			if !rung.Works {
				not = append(not, rung.Trigger+": "+rung.Why)
			}
		}
		detail := fmt.Sprintf("%s, %s, %s of it free, NUMA node %d; trigger of I/O: %s", g.Name, cli.Human(g.Bytes), cli.Human(g.Free), g.NUMANode, g.Trigger)
		if len(not) > 0 {
			detail += " (not " + strings.Join(not, "; ") + ")"
		}
		checks = append(checks, preflight.Okay(name, "%s", detail))
	}
	for _, p := range r.Machine.Problems {
		checks = append(checks, preflight.Warning("gpu health", "cascade gpu probe lists all GPUs of the node", "GPU %d of the node, %s: %s", p.Index, p.UUID, p.Problem))
	}
	return checks
}

// askGPUs runs cascade-gpu probe. Errors: the context's, where it took too long.
func askGPUs(ctx context.Context, path string, env []string) (r gpuReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, gpuPatience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "probe", "--json")
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &errs
	cmd.WaitDelay = time.Second // of a process that cannot be killed the output is not waited for
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		return r, fmt.Errorf("%s probe: %w: %s", path, err, strings.TrimSpace(errs.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%s probe: %w", path, err)
	}
	return r, nil
}
