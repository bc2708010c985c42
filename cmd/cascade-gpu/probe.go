package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	Direct  direct  `json:"cufile"`
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
	Found    bool   `json:"found"` // a library was loaded
	Emulated bool   `json:"emulated,omitempty"`
	CUDA     string `json:"cuda,omitempty"`
	Problem  string `json:"problem,omitempty"`
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
	Ring    ring   `json:"ring"`
	Green   green  `json:"green"`
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
	library     string // of the driver; "" for the loader's
	fileLibrary string // of cuFile; "" for the loader's
	dir         string // in which cuFile is tried; "" for that of temporary files
	sys         string // where sysfs is
	patience    time.Duration
	slow        error // of a GPU that still works for the probe: calls for another could wait for it
	manage      func() ([]nvml.GPU, [][]nvml.Distance, error)
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
		r.Direct.Why = r.Driver.Problem
		return r
	}
	version, err := d.Version()
	n, err2 := d.Devices()
	if err := errors.Join(err, err2); err != nil {
		r.Driver.Problem = err.Error()
		r.Direct.Why = r.Driver.Problem
		return r
	}
	r.Driver.CUDA = cudaVersion(version)
	r.Driver.Emulated = d.Has(emulator)
	for i := range n {
		g, slow := p.gpu(d, i)
		r.GPUs, p.slow = append(r.GPUs, g), cmp.Or(p.slow, slow)
	}
	r.Direct = p.direct()
	return r
}

// gpu reports a GPU, and the error, if it is errSlow, of what it did not end.
func (p prober) gpu(d *cuda.Driver, number int) (g gpu, slow error) {
	g.Number = number
	dev, problem := d.Device(number)
	if problem == nil {
		problem = g.describe(dev)
	}
	g.link = p.link(g.PCI)
	if problem == nil {
		var kernel, memop error
		kernel, memop, problem = p.withContext(dev, &g)
		g.Ladder = append(g.Ladder, tried(triggerPTX, kernel), tried(triggerMemop, memop))
		if errors.Is(kernel, errSlow) {
			slow = kernel
		}
	}
	if problem != nil {
		why := problem.Error()
		g.Problem, g.Green.Why, g.Ladder = why, cmp.Or(g.Green.Why, why), []rung{{Trigger: triggerPTX, Why: why}, {Trigger: triggerMemop, Why: why}}
	}
	g.Ladder = append(g.Ladder, rung{Trigger: triggerCPU, Works: true})
	g.Trigger = g.Ladder[slices.IndexFunc(g.Ladder, func(r rung) bool { return r.Works })].Trigger
	return g, slow
}

func tried(trigger string, err error) rung {
	if err != nil {
		return rung{Trigger: trigger, Why: err.Error()}
	}
	return rung{Trigger: trigger, Works: true}
}

// describe asks what takes no context.
func (g *gpu) describe(dev cuda.Device) error {
	var errs [8]error
	var major, minor int
	g.Name, errs[0] = dev.Name()
	g.UUID, errs[1] = dev.UUID()
	g.PCI, errs[2] = dev.PCI()
	g.Bytes, errs[3] = dev.Bytes()
	g.CopyEngines, errs[4] = dev.Attribute(cuda.AsyncEngines)
	major, errs[5] = dev.Attribute(cuda.CapabilityMajor)
	minor, errs[6] = dev.Attribute(cuda.CapabilityMinor)
	g.Capability = fmt.Sprintf("%d.%d", major, minor)
	facts, err := deviceFacts(dev)
	g.Ring, errs[7] = ringOf(facts), err
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

// withContext asks and tries what takes a context: why the kernel and memory operations do not
// work, and why nothing could be tried.
func (p prober) withContext(dev cuda.Device, g *gpu) (kernel, memop, problem error) {
	if p.slow != nil {
		return nil, nil, fmt.Errorf("not tried beside another GPU: %w", p.slow)
	}
	c, err := dev.Retain()
	if err != nil {
		return nil, nil, err
	}
	if g.Free, _, err = c.MemInfo(); err == nil {
		memop = p.tryMemop(c)
		if errors.Is(memop, errSlow) { // no module can be loaded beside a stream that waits
			g.Green.Why, kernel = memop.Error(), fmt.Errorf("not tried: %w", memop)
		} else {
			g.Green = tryGreen(c)
			kernel = p.tryKernel(c, &g.Ring)
		}
	}
	if !errors.Is(kernel, errSlow) { // what is still under way must not lose its memory
		err = errors.Join(err, c.Release())
	}
	return kernel, memop, err
}

// errSlow means that a GPU still works for the probe, and has the memory of that.
var errSlow = errors.New("an operation of the GPU did not end in time")

// oneConnection refuses the setting with which what waits stops all else.
func oneConnection() error {
	if os.Getenv("CUDA_DEVICE_MAX_CONNECTIONS") == "1" {
		return errors.New("CUDA_DEVICE_MAX_CONNECTIONS is 1: a stream that waits would stop every other; unset it, or set 8")
	}
	return nil
}

// tryMemop has a stream wait for a word that is there, and store another.
func (p prober) tryMemop(c *cuda.Context) (err error) {
	if err := oneConnection(); err != nil {
		return err
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("a page for words: %w", err)
	}
	var undo cleanup
	defer func() {
		if !errors.Is(err, errSlow) {
			err = errors.Join(err, undo.run())
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
		return fmt.Errorf("%w: memory operations, waited %v", errSlow, p.patience)
	}
	if err == nil && atomic.LoadUint32(ended) != 2 {
		err = errors.New("the word that a stream stored did not reach the host")
	}
	return err
}
