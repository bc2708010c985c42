package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is the driver's name for the loader.
const Library = "libcuda.so.1"

// call is a function of the driver, by its place in names.
type call int

const (
	cuInit call = iota
	cuDriverGetVersion
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceGetUUID
	cuDeviceGetPCIBusID
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemAlloc
	cuMemFree
	cuMemGetInfo
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamQuery
	cuStreamWaitEvent
	cuStreamWriteValue32
	cuStreamWaitValue32
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyBatchAsync
	cuMemcpyBatchAsync12
	cuEventCreate
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuEventDestroy
	cuIpcGetMemHandle
	cuIpcOpenMemHandle
	cuIpcCloseMemHandle
	cuModuleLoadData
	cuModuleGetFunction
	cuModuleUnload
	cuLaunchKernel
	cuDeviceGetDevResource
	cuDevSmResourceSplitByCount
	cuDevResourceGenerateDesc
	cuGreenCtxCreate
	cuGreenCtxDestroy
	calls
)

// names are the functions as the driver exports them.
var names = [calls]string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2",
	"cuDeviceGetUuid_v2", "cuDeviceGetPCIBusId", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemHostGetDevicePointer_v2",
	"cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamWaitEvent",
	"cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyBatchAsync_v2",
	"cuMemcpyBatchAsync", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventDestroy_v2",
	"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
	"cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel",
	"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxDestroy",
}

// Driver is the driver as this process has loaded it. It is safe for concurrent
// use, and stays loaded for the life of the process: the driver has no end.
type Driver struct {
	library uintptr
	at      [calls]uintptr // 0: it lacks the call
}

// Open loads the driver and initializes it. library is a path, or "" for Library.
// Errors: ErrNoDriver; NoDevice where there is a driver and no GPU.
func Open(library string) (*Driver, error) {
	if library == "" {
		library = Library
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %v: install NVIDIA's driver, or have the loader find its libraries (ldconfig, LD_LIBRARY_PATH)", ErrNoDriver, err)
	}
	d := &Driver{library: handle}
	for i, name := range names {
		if at, err := purego.Dlsym(handle, name); err == nil {
			d.at[i] = at
		}
	}
	if err := d.do(cuInit, "", 0); err != nil {
		return nil, err
	}
	return d, nil
}

// Has reports whether the driver exports a function, by its exported name.
func (d *Driver) Has(name string) bool {
	_, err := purego.Dlsym(d.library, name)
	return err == nil
}

// Version returns the newest CUDA that the driver supports: 13000 is 13.0.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.do(cuDriverGetVersion, "", uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// Devices returns how many GPUs the process sees. With MIG it is one at most.
func (d *Driver) Devices() (int, error) {
	var n int32
	err := d.do(cuDeviceGetCount, "", uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// do calls the driver, which is not about a context.
//
//go:uintptrescapes
func (d *Driver) do(c call, about string, args ...uintptr) error {
	if d.at[c] == 0 {
		return &Error{Call: names[c], About: about, Remedy: "a newer driver has it"}
	}
	result, _, _ := purego.SyscallN(d.at[c], args...)
	if code := Code(int32(result)); code != 0 {
		return &Error{Call: names[c], About: about, Code: code, Remedy: known[code].remedy}
	}
	return nil
}

// in calls the driver with a context current on the thread.
//
//go:uintptrescapes
func (c *Context) in(f call, about string, args ...uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.driver.do(cuCtxSetCurrent, about, c.handle); err != nil {
		return err
	}
	return c.driver.do(f, about, args...)
}

// text is a string of C in a buffer.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
