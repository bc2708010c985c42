package nvml

import (
	"errors"
	"fmt"

	"cascadekv/gpu/failure"
)

// ErrNoLibrary says that there is no management library, or none in this build.
var ErrNoLibrary = errors.New("no NVIDIA management library")

// Code is a result of the library (nvmlReturn_t). It is an error: errors.Is(err, Lost).
type Code int32

// Results that callers distinguish. The library has more.
const (
	NotSupported     Code = 3
	NoPermission     Code = 4
	DriverNotLoaded  Code = 9
	FunctionNotFound Code = 13
	Lost             Code = 15
	Mismatch         Code = 18
)

// known has the words for a result, and what to do about it.
var known = map[Code]struct{ name, remedy string }{
	NotSupported:     {"not supported", "this GPU or driver does not have it"},
	NoPermission:     {"no permission", "run as a user who may use the GPU: see the rights of /dev/nvidia*"},
	DriverNotLoaded:  {"the driver is not loaded", "load the kernel's module: modprobe nvidia"},
	FunctionNotFound: {"the library lacks the function", "a newer driver has it"},
	Lost:             {"the GPU is lost", "drain the node, and reset the GPU or boot: see the kernel's log for Xid messages"},
	Mismatch:         {"the driver and the library are of different versions", "load the module of the library's version, or boot"},
}

// Error implements error.
func (c Code) Error() string {
	if k, ok := known[c]; ok {
		return k.name
	}
	return fmt.Sprintf("result %d", int32(c))
}

// Error is a call of the library that failed. It wraps its Code.
type Error struct {
	Call  string // as NVML has it
	About string // what of; "" where the call says it
	Code  Code
}

// Error implements error.
func (e *Error) Error() string {
	return failure.Text(e.Call, e.About, e.Code, int32(e.Code), known[e.Code].remedy)
}

// Unwrap returns the Code.
func (e *Error) Unwrap() error { return e.Code }

// GPU is one of the machine's, as it was when it was asked.
type GPU struct {
	Index    int    `json:"index"` // of NVML, by place on the bus; the driver may count otherwise
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	PCI      string `json:"pci"` // as sysfs has it: "0000:1b:00.0"
	Bytes    int64  `json:"bytes"`
	Used     int64  `json:"used_bytes"` // by all processes, and by the driver
	NUMANode int    `json:"numa_node"`  // -1: not known
	LinkGen  int    `json:"link_generation"`
	LinkW    int    `json:"link_width"`
	MIG      bool   `json:"mig"`
	Parts    []Part `json:"parts,omitempty"` // of a GPU with MIG
	Health   Health `json:"health"`
}

// Part is a part of a GPU that is a device of its own (MIG).
type Part struct {
	UUID  string `json:"uuid"`
	Bytes int64  `json:"bytes"`
	Used  int64  `json:"used_bytes"`
}

// Health is what is wrong with a GPU's memory.
type Health struct {
	Uncorrected int64 `json:"uncorrected_errors"` // since the driver was loaded; -1: not known
	Pending     bool  `json:"remap_pending"`      // a row of memory is replaced at the next reset
	Failed      bool  `json:"remap_failed"`       // no row is left to replace one
}

// Problem returns what an operator should do about the GPU; "" for nothing.
func (h Health) Problem() string {
	switch {
	case h.Failed:
		return "a damaged row of its memory could not be replaced: drain the node and have the GPU replaced"
	case h.Uncorrected > 0:
		return fmt.Sprintf("%d uncorrected errors of its memory: drain the node and reset the GPU", h.Uncorrected)
	case h.Pending:
		return "a damaged row of its memory is replaced at the next reset: reset it when the node is idle"
	}
	return ""
}

// Distance is what lies between two GPUs, the nearer the less (nvmlGpuTopologyLevel_t).
type Distance int

// Distances.
const (
	SameBoard  Distance = 0
	OneSwitch  Distance = 10
	Switches   Distance = 20
	HostBridge Distance = 30
	SameNode   Distance = 40 // of NUMA
	System     Distance = 50 // between NUMA nodes
)

// String is the word that nvidia-smi topo has for it.
func (d Distance) String() string {
	switch d {
	case SameBoard:
		return "board"
	case OneSwitch:
		return "PIX"
	case Switches:
		return "PXB"
	case HostBridge:
		return "PHB"
	case SameNode:
		return "NODE"
	case System:
		return "SYS"
	}
	return fmt.Sprintf("level %d", int(d))
}
