//go:build cgo

package nvml

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Library is the management library, from Open to Close. It is safe for concurrent
// use but for Close, which comes last.
type Library struct{ nvml nvml.Interface }

// Open loads the library and has it look for GPUs. Errors: ErrNoLibrary,
// DriverNotLoaded, Mismatch.
func Open() (*Library, error) { return open(nvml.New()) }

func open(n nvml.Interface) (*Library, error) {
	l := &Library{nvml: n}
	switch r := n.Init(); r {
	case nvml.SUCCESS:
		return l, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1 is not there: install NVIDIA's driver, or have the loader find its libraries", ErrNoLibrary)
	default:
		return nil, failed("nvmlInit", "", r)
	}
}

// failed is the error of a call; nil where it succeeded.
func failed(call, about string, r nvml.Return) error {
	if r == nvml.SUCCESS {
		return nil
	}
	return &Error{Call: call, About: about, Code: Code(r)}
}

// Close ends the use of the library.
func (l *Library) Close() error { return failed("nvmlShutdown", "", l.nvml.Shutdown()) }

// has reports whether the library exports a function. One that it lacks must not be
// called: the loader would end the process.
func (l *Library) has(name string) bool { return l.nvml.Extensions().LookupSymbol(name) == nil }

// devices returns the handles of all GPUs.
func (l *Library) devices() ([]nvml.Device, error) {
	n, r := l.nvml.DeviceGetCount()
	if err := failed("nvmlDeviceGetCount", "", r); err != nil {
		return nil, err
	}
	all := make([]nvml.Device, n)
	for i := range all {
		if all[i], r = l.nvml.DeviceGetHandleByIndex(i); r != nvml.SUCCESS {
			return nil, failed("nvmlDeviceGetHandleByIndex", fmt.Sprintf("GPU %d", i), r)
		}
	}
	return all, nil
}

// GPUs returns all GPUs of the machine that the user may see.
func (l *Library) GPUs() ([]GPU, error) {
	devices, err := l.devices()
	if err != nil {
		return nil, err
	}
	gpus := make([]GPU, len(devices))
	for i, d := range devices {
		if gpus[i], err = l.gpu(i, d); err != nil {
			return nil, err
		}
	}
	return gpus, nil
}

// gpu asks one for everything. What it does not support is left at what stands for
// that.
func (l *Library) gpu(index int, d nvml.Device) (GPU, error) {
	g := GPU{Index: index, NUMANode: -1, LinkGen: -1, LinkW: -1, Health: Health{Uncorrected: -1}}
	a := asking{library: l, about: fmt.Sprintf("GPU %d", index)}
	g.Name = ask(&a, "nvmlDeviceGetName", d.GetName, "")
	g.UUID = ask(&a, "nvmlDeviceGetUUID", d.GetUUID, "")
	pci := ask(&a, "nvmlDeviceGetPciInfo_v3", d.GetPciInfo, nvml.PciInfo{})
	g.PCI = address(pci.BusId[:])
	m := ask(&a, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo, nvml.Memory{})
	g.Bytes, g.Used = int64(m.Total), int64(m.Used)
	g.LinkGen = ask(&a, "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration, -1)
	g.LinkW = ask(&a, "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth, -1)
	g.NUMANode = ask(&a, "nvmlDeviceGetNumaNodeId", d.GetNumaNodeId, -1)
	g.Health.Uncorrected = ask(&a, "nvmlDeviceGetTotalEccErrors", func() (int64, nvml.Return) {
		n, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		return int64(n), r
	}, -1)
	rows := ask(&a, "nvmlDeviceGetRemappedRows", func() ([2]bool, nvml.Return) {
		_, _, pending, failure, r := d.GetRemappedRows()
		return [2]bool{pending, failure}, r
	}, [2]bool{})
	g.Health.Pending, g.Health.Failed = rows[0], rows[1]
	g.MIG = ask(&a, "nvmlDeviceGetMigMode", func() (bool, nvml.Return) {
		mode, _, r := d.GetMigMode()
		return mode == nvml.DEVICE_MIG_ENABLE, r
	}, false)
	if g.MIG {
		g.Parts = a.parts(d)
	}
	return g, a.err
}

// parts asks for the parts of a GPU with MIG. Numbers have gaps.
func (a *asking) parts(d nvml.Device) (parts []Part) {
	for i := range ask(a, "nvmlDeviceGetMaxMigDeviceCount", d.GetMaxMigDeviceCount, 0) {
		part, r := d.GetMigDeviceHandleByIndex(i)
		if r == nvml.ERROR_NOT_FOUND || r == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if a.err = errors.Join(a.err, failed("nvmlDeviceGetMigDeviceHandleByIndex", a.about, r)); r != nvml.SUCCESS {
			return parts
		}
		m := ask(a, "nvmlDeviceGetMemoryInfo", part.GetMemoryInfo, nvml.Memory{})
		parts = append(parts, Part{UUID: ask(a, "nvmlDeviceGetUUID", part.GetUUID, ""), Bytes: int64(m.Total), Used: int64(m.Used)})
	}
	return parts
}

// asking collects what fails while a GPU is asked.
type asking struct {
	library *Library
	about   string
	err     error
}

// ask calls a function of the library, and returns otherwise where it, the driver
// or the GPU does not have it, and after an error.
func ask[V any](a *asking, call string, fn func() (V, nvml.Return), otherwise V) V {
	if !a.library.has(call) {
		return otherwise
	}
	v, r := fn()
	switch r {
	case nvml.SUCCESS:
		return v
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION:
	default:
		a.err = errors.Join(a.err, failed(call, a.about, r))
	}
	return otherwise
}

// address is a place on the bus as sysfs has it. NVML's domain has eight digits.
func address(busID []uint8) string {
	text, _, _ := bytes.Cut(busID, []byte{0})
	s := strings.ToLower(string(text))
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 {
		s = strings.TrimPrefix(domain, "0000") + ":" + rest
	}
	return s
}

// Distances returns what lies between each two GPUs, by their indices; between one
// and itself nothing does: SameBoard.
func (l *Library) Distances() ([][]Distance, error) {
	devices, err := l.devices()
	if err != nil {
		return nil, err
	}
	all := make([][]Distance, len(devices))
	for i := range all {
		all[i] = make([]Distance, len(devices))
	}
	for i, a := range devices {
		for j := range i {
			level, r := a.GetTopologyCommonAncestor(devices[j])
			if err := failed("nvmlDeviceGetTopologyCommonAncestor", fmt.Sprintf("GPUs %d and %d", j, i), r); err != nil {
				return nil, err
			}
			all[i][j], all[j][i] = Distance(level), Distance(level)
		}
	}
	return all, nil
}
