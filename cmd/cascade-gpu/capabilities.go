package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/cuda"
	"cascadekv/gpu/gio"
)

// ring is what the ring of a GPU follows from.
type ring struct {
	UnitSMs        int    `json:"unit_sms"`
	WarpsPerSM     int    `json:"warps_per_sm"`
	ThreadsPerWarp int    `json:"threads_per_warp"`
	NumIOCTX       int    `json:"num_ioctx"`        // the most I/Os of an IOCB
	Engine         string `json:"engine,omitempty"` // that served when the kernel was tried
}

func (r ring) facts() gio.Facts {
	return gio.Facts{UnitSMs: r.UnitSMs, WarpsPerSM: r.WarpsPerSM, ThreadsPerWarp: r.ThreadsPerWarp}
}

func ringOf(f gio.Facts) ring {
	return ring{UnitSMs: f.UnitSMs, WarpsPerSM: f.WarpsPerSM, ThreadsPerWarp: f.ThreadsPerWarp, NumIOCTX: f.NumIOCTX()}
}

// green is whether SMs can be set apart for I/O by a green context.
type green struct {
	Works       bool   `json:"works"`
	SMs         int    `json:"sms"`         // of the GPU
	Least       int    `json:"least_sms"`   // the smallest part
	Granularity int    `json:"granularity"` // parts are larger by a multiple of that; 0 where only one part fits
	Why         string `json:"why,omitempty"`
}

// tryGreen makes a green context of the least SMs that a GPU can set apart, and ends it.
func tryGreen(c *cuda.Context) (g green) {
	err := func() error {
		all, err := c.Device().SMs()
		if err != nil {
			return err
		}
		least, err := all.Split(1)
		if err != nil {
			return err
		}
		g.SMs, g.Least = all.Count(), least.Count()
		next, err := all.Split(g.Least + 1)
		switch {
		case err == nil:
			g.Granularity = next.Count() - g.Least
		case !errors.Is(err, cuda.InvalidPartition) && !errors.Is(err, cuda.InvalidValue): // these: nothing larger fits
			return err
		}
		made, err := c.NewGreen(least)
		if err != nil {
			return err
		}
		return made.Destroy()
	}()
	if g.Works = err == nil; !g.Works {
		g.Why = err.Error()
	}
	return g
}

// The ways by which cuFile serves a file.
const (
	pathModule        = "nvidia-fs"     // from the disk to device memory, by the kernel's module
	pathCompatibility = "compatibility" // without the module: by way of host memory, unless the machine is set up for P2PDMA
)

// direct is whether cuFile takes a file in a directory.
type direct struct {
	Found  bool   `json:"found"` // the library was loaded
	Module bool   `json:"nvidia_fs"`
	Dir    string `json:"dir"`
	Works  bool   `json:"works"`
	Path   string `json:"path,omitempty"` // pathModule or pathCompatibility, where it works
	Why    string `json:"why,omitempty"`
}

// errFileSlow means that cuFile did not answer; it has its file for good.
var errFileSlow = errors.New("cuFile did not answer in time")

// direct tries cuFile on a new file. The library answers on a goroutine of its own, which is left behind
// where it does not.
func (p prober) direct() direct {
	d := direct{Dir: p.dir}
	if d.Dir == "" {
		d.Dir = os.TempDir()
	}
	_, err := os.Stat(filepath.Join(p.sys, "module/nvidia_fs"))
	d.Module = err == nil
	if d.Found, err = p.tryFile(d.Dir); err != nil {
		d.Why = err.Error()
		return d
	}
	d.Works, d.Path = true, pathCompatibility
	if d.Module {
		d.Path = pathModule
	}
	return d
}

func (p prober) tryFile(dir string) (found bool, err error) {
	name := filepath.Join(dir, fmt.Sprintf("cascade-gpu-probe-%d-%d", os.Getpid(), time.Now().UnixNano()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_DIRECT, 0o600)
	if err != nil {
		return false, fmt.Errorf("a file past the page cache: %w: name another directory with --dir", err)
	}
	defer func() {
		if !errors.Is(err, errFileSlow) {
			err = errors.Join(err, f.Close())
		}
		err = errors.Join(err, os.Remove(name))
	}()
	done := make(chan error, 1)
	go func() {
		files, err := cuda.OpenFiles(p.fileLibrary)
		if err == nil {
			err = errors.Join(files.TryFile(f), files.Close())
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("%w: waited %v; see the kernel's log for nvidia-fs", errFileSlow, p.patience)
	}
	return !errors.Is(err, cuda.ErrNoCuFile), err
}
