//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// gpu is a device that knows everything.
func gpu(i int) *mock.Device {
	d := &mock.Device{}
	d.GetNameFunc = func() (string, nvml.Return) { return "H200", nvml.SUCCESS }
	d.GetUUIDFunc = func() (string, nvml.Return) { return fmt.Sprintf("GPU-%d", i), nvml.SUCCESS }
	d.GetPciInfoFunc = func() (p nvml.PciInfo, _ nvml.Return) {
		for k, c := range fmt.Sprintf("00000000:%02X:00.0", 0x1b+i) {
			p.BusId[k] = uint8(c)
		}
		return p, nvml.SUCCESS
	}
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80 << 30, Used: 3 << 30}, nvml.SUCCESS }
	d.GetCurrPcieLinkGenerationFunc = func() (int, nvml.Return) { return 5, nvml.SUCCESS }
	d.GetCurrPcieLinkWidthFunc = func() (int, nvml.Return) { return 16, nvml.SUCCESS }
	d.GetNumaNodeIdFunc = func() (int, nvml.Return) { return i, nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 2, nvml.SUCCESS }
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, false, nvml.SUCCESS }
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.SUCCESS }
	d.GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) { return nvml.TOPOLOGY_NODE, nvml.SUCCESS }
	return d
}

// library is one with these GPUs, that lacks some functions.
func library(t *testing.T, gpus []*mock.Device, lacks ...string) *Library {
	t.Helper()
	missing := map[string]bool{}
	for _, name := range lacks {
		missing[name] = true
	}
	l, err := open(&mock.Interface{
		InitFunc:           func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:       func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(gpus), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return gpus[i], nvml.SUCCESS
		},
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if missing[name] {
					return errors.New("undefined symbol")
				}
				return nil
			}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestGPUs(t *testing.T) {
	l := library(t, []*mock.Device{gpu(0), gpu(1)})
	got, err := l.GPUs()
	want := GPU{Index: 1, Name: "H200", UUID: "GPU-1", PCI: "0000:1c:00.0", Bytes: 80 << 30, Used: 3 << 30, NUMANode: 1, LinkGen: 5, LinkW: 16,
		Health: Health{Uncorrected: 2, Pending: true}}
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[1], want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	distances, err := l.Distances()
	if want := [][]Distance{{SameBoard, SameNode}, {SameNode, SameBoard}}; err != nil || !reflect.DeepEqual(distances, want) {
		t.Errorf("distances %v, %v; want %v", distances, err, want)
	}
}

// TestUnknown tries that what a GPU does not know, or an old library lacks, is no
// error, and what fails is one.
func TestUnknown(t *testing.T) {
	d := gpu(0)
	d.GetNumaNodeIdFunc = nil // to call it would panic
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	got, err := library(t, []*mock.Device{d}, "nvmlDeviceGetNumaNodeId").GPUs()
	if err != nil || got[0].NUMANode != -1 || got[0].Health.Uncorrected != -1 || got[0].MIG {
		t.Errorf("%+v, %v", got, err)
	}
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	_, err = library(t, []*mock.Device{d}, "nvmlDeviceGetNumaNodeId").GPUs()
	var e *Error
	if !errors.Is(err, Lost) || !errors.As(err, &e) || e.Call != "nvmlDeviceGetMemoryInfo" || e.About != "GPU 0" {
		t.Errorf("a GPU that is lost: %v", err)
	}
}

func TestParts(t *testing.T) {
	d := gpu(0)
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 3, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return gpu(10 + i), nvml.SUCCESS
	}
	got, err := library(t, []*mock.Device{d}).GPUs()
	want := []Part{{UUID: "GPU-10", Bytes: 80 << 30, Used: 3 << 30}, {UUID: "GPU-12", Bytes: 80 << 30, Used: 3 << 30}}
	if err != nil || !got[0].MIG || !reflect.DeepEqual(got[0].Parts, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestOpen(t *testing.T) {
	for want, r := range map[error]nvml.Return{ErrNoLibrary: nvml.ERROR_LIBRARY_NOT_FOUND, DriverNotLoaded: nvml.ERROR_DRIVER_NOT_LOADED, Mismatch: nvml.ERROR_LIB_RM_VERSION_MISMATCH} {
		if _, err := open(&mock.Interface{InitFunc: func() nvml.Return { return r }}); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", r, err, want)
		}
	}
}
