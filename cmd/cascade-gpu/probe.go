package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/cuda"
	"cascadekv/gpu/nvml"
)

// The triggers, from the best.
const (
	triggerPTX   = "ptx"
	triggerMemop = "memop"
	triggerCPU   = "cpu"
)

// report is what probe found.
type report struct {
	Driver  driver  `json:"driver"`
	GPUs    []gpu   `json:"gpus"`
	Machine machine `json:"machine"`
}

// machine is what NVIDIA's management library has, of all GPUs of the machine.
type machine struct {
	Found     bool              `json:"found"`
	Problem   string            `json:"problem,omitempty"`
	GPUs      []nvml.GPU        `json:"gpus"`
	Distances [][]nvml.Distance `json:"distances"` // between two GPUs, by their indices
	Problems  []unhealthy       `json:"problems"`
}

// unhealthy is a GPU that an operator should do something about.
type unhealthy struct {
	Index   int    `json:"index"`
	UUID    string `json:"uuid"`
	Problem string `json:"problem"`
}

// driver is the library. Problem says why there is none, or none that works.
type driver struct {
	Found   bool   `json:"found"` // a library was loaded
	CUDA    string `json:"cuda,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// gpu is a device that the process sees.
type gpu struct {
	Number      int    `json:"number"`
	Name        string `json:"name"`
	UUID        string `json:"uuid"`
	Capability  string `json:"capability"` // "9.0"
	Bytes       int64  `json:"bytes"`
	Free        int64  `json:"free_bytes"` // beside the context of the probe; 0 without one
	CopyEngines int    `json:"copy_engines"`
	PCI         string `json:"pci"`
	link
	Trigger string `json:"trigger"` // the best that works
	Ladder  []rung `json:"ladder"`
	Problem string `json:"problem,omitempty"` // why no trigger of the GPU's own could be tried
}

// link is what sysfs has of where a GPU is. A number is -1, a text empty, where it
// does not say.
type link struct {
	NUMANode int    `json:"numa_node"`
	CPUs     string `json:"local_cpus"`
	Speed    string `json:"link_speed"`
	Width    int    `json:"link_width"`
}

// rung is a trigger, and why it can not be used here.
type rung struct {
	Trigger string `json:"trigger"`
	Works   bool   `json:"works"`
	Why     string `json:"why,omitempty"`
}

// prober looks at the machine.
type prober struct {
	library  string // of the driver; "" for the loader's
	sys      string // where sysfs is
	patience time.Duration
	manage   func() ([]nvml.GPU, [][]nvml.Distance, error)
}

// managed asks the management library.
func managed() (gpus []nvml.GPU, distances [][]nvml.Distance, err error) {
	l, err := nvml.Open()
	if err != nil {
		return nil, nil, err
	}
	gpus, err = l.GPUs()
	distances, err2 := l.Distances()
	return gpus, distances, errors.Join(err, err2, l.Close())
}

func (p prober) machine() machine {
	gpus, distances, err := p.manage()
	m := machine{Found: !errors.Is(err, nvml.ErrNoLibrary), GPUs: append([]nvml.GPU{}, gpus...), Distances: append([][]nvml.Distance{}, distances...), Problems: []unhealthy{}}
	for _, g := range gpus {
		if problem := g.Health.Problem(); problem != "" {
			m.Problems = append(m.Problems, unhealthy{g.Index, g.UUID, problem})
		}
	}
	if err != nil {
		m.Problem = err.Error()
	}
	return m
}

// probe reports what is there. Whatever is missing or broken is in the report.
func (p prober) probe() report {
	r := report{GPUs: []gpu{}, Machine: p.machine()}
	d, err := cuda.Open(p.library)
	r.Driver.Found = !errors.Is(err, cuda.ErrNoDriver)
	if err != nil {
		r.Driver.Problem = err.Error()
		return r
	}
	version, err := d.Version()
	n, err2 := d.Devices()
	if err := errors.Join(err, err2); err != nil {
		r.Driver.Problem = err.Error()
		return r
	}
	r.Driver.CUDA = cudaVersion(version)
	for i := range n {
		r.GPUs = append(r.GPUs, p.gpu(d, i))
	}
	return r
}

func (p prober) gpu(d *cuda.Driver, number int) gpu {
	g := gpu{Number: number, Trigger: triggerCPU}
	dev, problem := d.Device(number)
	if problem == nil {
		problem = g.describe(dev)
	}
	g.link = p.link(g.PCI)
	if problem == nil {
		var memop error
		memop, problem = p.withContext(dev, &g)
		g.Ladder = append(g.Ladder, rung{Trigger: triggerPTX, Why: "this build has no kernel"}, tried(triggerMemop, memop))
		if memop == nil && problem == nil {
			g.Trigger = triggerMemop
		}
	}
	if problem != nil {
		g.Problem, g.Ladder = problem.Error(), []rung{{Trigger: triggerPTX, Why: problem.Error()}, {Trigger: triggerMemop, Why: problem.Error()}}
	}
	g.Ladder = append(g.Ladder, rung{Trigger: triggerCPU, Works: true})
	return g
}

func tried(trigger string, err error) rung {
	if err != nil {
		return rung{Trigger: trigger, Why: err.Error()}
	}
	return rung{Trigger: trigger, Works: true}
}

// describe asks what takes no context.
func (g *gpu) describe(dev cuda.Device) error {
	var errs [7]error
	var major, minor int
	g.Name, errs[0] = dev.Name()
	g.UUID, errs[1] = dev.UUID()
	g.PCI, errs[2] = dev.PCI()
	g.Bytes, errs[3] = dev.Bytes()
	g.CopyEngines, errs[4] = dev.Attribute(cuda.AsyncEngines)
	major, errs[5] = dev.Attribute(cuda.CapabilityMajor)
	minor, errs[6] = dev.Attribute(cuda.CapabilityMinor)
	g.Capability = fmt.Sprintf("%d.%d", major, minor)
	return errors.Join(errs[:]...)
}

// link reads where the GPU with that address on the bus is.
func (p prober) link(pci string) link {
	l := link{NUMANode: -1, Width: -1}
	if pci == "" {
		return l
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(p.sys, "bus/pci/devices", pci, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	if n, err := strconv.Atoi(read("numa_node")); err == nil {
		l.NUMANode = n
	}
	if n, err := strconv.Atoi(read("current_link_width")); err == nil {
		l.Width = n
	}
	l.CPUs, l.Speed = read("local_cpulist"), read("current_link_speed")
	return l
}

// withContext asks and tries what takes a context: why memory operations do not
// work, and why nothing could be tried.
func (p prober) withContext(dev cuda.Device, g *gpu) (memop, problem error) {
	c, err := dev.Retain()
	if err != nil {
		return nil, err
	}
	if g.Free, _, err = c.MemInfo(); err == nil {
		memop = p.tryMemop(c)
	}
	if !errors.Is(memop, errSlow) { // what is still under way must not lose its memory
		err = errors.Join(err, c.Release())
	}
	return memop, err
}

var errSlow = errors.New("a memory operation did not end in time")

// tryMemop has a stream wait for a word that is there, and store another.
func (p prober) tryMemop(c *cuda.Context) (err error) {
	if os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS") == "1" {
		return errors.New("CUDA_DEVICE_MAX_CONNECTIONS is 1: a stream that waits would stop every other; unset it, or set 8")
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("a page for words: %w", err)
	}
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0 && !errors.Is(err, errSlow); i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	undo = append(undo, func() error { return unix.Munmap(page) })
	if err = c.Register(page, cuda.Portable|cuda.DeviceMap); err != nil {
		return err
	}
	undo = append(undo, func() error { return c.Unregister(page) })
	at, err := c.Mapped(page)
	if err != nil {
		return err
	}
	s, err := c.NewStream(0)
	if err != nil {
		return err
	}
	undo = append(undo, s.Destroy)
	started, ended := (*uint32)(unsafe.Pointer(&page[0])), (*uint32)(unsafe.Pointer(&page[4]))
	atomic.StoreUint32(started, 1)
	if err = s.WaitValue(at, 1); err != nil {
		return err
	}
	if err = s.WriteValue(at+4, 2); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	if err = s.Await(ctx); errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: waited %v", errSlow, p.patience)
	}
	if err == nil && atomic.LoadUint32(ended) != 2 {
		err = errors.New("the word that a stream stored did not reach the host")
	}
	return err
}
