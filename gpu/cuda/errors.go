package cuda

import (
	"errors"
	"strconv"

	"cascadekv/gpu/failure"
)

// Errors of a machine that has no use for this package. Test with errors.Is.
var (
	ErrNoDriver = errors.New("no CUDA driver") // libcuda is not there, or can not be loaded
	ErrMissing  = errors.New("the CUDA driver lacks a function")
)

// Code is a result of the driver (CUresult). It is an error: errors.Is(err, OutOfMemory).
type Code int32

// Results that callers distinguish. The driver has more.
const (
	InvalidValue         Code = 1
	OutOfMemory          Code = 2
	NotInitialized       Code = 3
	StubLibrary          Code = 34
	DeviceUnavailable    Code = 46
	NoDevice             Code = 100
	InvalidDevice        Code = 101
	InvalidContext       Code = 201
	ECCUncorrectable     Code = 214
	InvalidPTX           Code = 218
	NoJITCompiler        Code = 221
	UnsupportedPTX       Code = 222
	NotFound             Code = 500
	NotReady             Code = 600
	IllegalAddress       Code = 700
	LaunchOutOfResources Code = 701
	LaunchTimeout        Code = 702
	AlreadyRegistered    Code = 712
	NotRegistered        Code = 713
	LaunchFailed         Code = 719
	NotSupported         Code = 801
	SystemNotReady       Code = 802
	SystemDriverMismatch Code = 803
	InvalidPartition     Code = 914
	Unknown              Code = 999
)

// known has what people call a result, and what they can do about it.
var known = map[Code]struct{ name, remedy string }{
	InvalidValue:         {"INVALID_VALUE", "an address or a length is outside its allocation or registration"},
	OutOfMemory:          {"OUT_OF_MEMORY", "ask for less, or free device memory: nvidia-smi shows who has it"},
	NotInitialized:       {"NOT_INITIALIZED", "use a Driver of Open"},
	StubLibrary:          {"STUB_LIBRARY", "the library is the toolkit's stub: have the loader find the driver's libcuda.so.1"},
	DeviceUnavailable:    {"DEVICE_UNAVAILABLE", "another process has the GPU alone: see its compute mode in nvidia-smi"},
	NoDevice:             {"NO_DEVICE", "no GPU is visible: see nvidia-smi, CUDA_VISIBLE_DEVICES and the job's --gres"},
	InvalidDevice:        {"INVALID_DEVICE", "name a GPU below the number of devices"},
	InvalidContext:       {"INVALID_CONTEXT", "the context was released"},
	ECCUncorrectable:     {"ECC_UNCORRECTABLE", "device memory is damaged: drain the node, and see nvidia-smi -q -d ECC"},
	InvalidPTX:           {"INVALID_PTX", "the program is damaged, or for a later GPU: build this program again"},
	NoJITCompiler:        {"JIT_COMPILER_NOT_FOUND", "install all of the driver: libnvidia-ptxjitcompiler is missing"},
	UnsupportedPTX:       {"UNSUPPORTED_PTX_VERSION", "a newer driver has it"},
	NotFound:             {"NOT_FOUND", "name a function of the program"},
	NotReady:             {"NOT_READY", "wait for it"},
	IllegalAddress:       {"ILLEGAL_ADDRESS", "the context is lost: release it and retain it anew"},
	LaunchOutOfResources: {"LAUNCH_OUT_OF_RESOURCES", "launch fewer threads in a block"},
	LaunchTimeout:        {"LAUNCH_TIMEOUT", "the context is lost: release it and retain it anew"},
	AlreadyRegistered:    {"HOST_MEMORY_ALREADY_REGISTERED", "register each range once"},
	NotRegistered:        {"HOST_MEMORY_NOT_REGISTERED", "name the beginning of a range that Register was given"},
	LaunchFailed:         {"LAUNCH_FAILED", "the context is lost: release it and retain it anew"},
	NotSupported:         {"NOT_SUPPORTED", "this GPU or driver can not do it"},
	SystemNotReady:       {"SYSTEM_NOT_READY", "start nvidia-fabricmanager and nvidia-persistenced"},
	SystemDriverMismatch: {"SYSTEM_DRIVER_MISMATCH", "the kernel's module and libcuda are of different versions: load the module of the library's version"},
	InvalidPartition:     {"INVALID_RESOURCE_CONFIGURATION", "ask for no more SMs than there are"},
	Unknown:              {"UNKNOWN", "see the kernel's log for Xid messages"},
}

// Error implements error: the driver's word for the result.
func (c Code) Error() string {
	if k, ok := known[c]; ok {
		return "CUDA_ERROR_" + k.name
	}
	return "CUDA_ERROR " + strconv.Itoa(int(c))
}

// Lost reports whether the context of the call is lost with this result.
func (c Code) Lost() bool {
	switch c {
	case ECCUncorrectable, IllegalAddress, LaunchTimeout, LaunchFailed, Unknown:
		return true
	}
	return c >= 714 && c <= 720 // further ways in which a kernel ends
}

// Error is a call of the driver that failed. It wraps its Code, or ErrMissing.
type Error struct {
	Call   string // as the driver exports it
	About  string // what of, "" where the call says it
	Code   Code   // 0 where the driver lacks the call
	Remedy string // "" where nothing better than the code is known
}

// Error implements error.
func (e *Error) Error() string {
	return failure.Text(e.Call, e.About, e.Unwrap(), int32(e.Code), e.Remedy)
}

// Unwrap returns the Code, or ErrMissing.
func (e *Error) Unwrap() error {
	if e.Code == 0 {
		return ErrMissing
	}
	return e.Code
}

// Lost reports whether err means that a context, and all device memory of the
// process in it, is lost.
func Lost(err error) bool {
	var c Code
	return errors.As(err, &c) && c.Lost()
}
