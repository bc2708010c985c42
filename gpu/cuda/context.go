package cuda

import (
	"fmt"
	"unsafe"
)

// Context is the primary context of a device: its memory, its streams, and the
// host memory that is registered with it.
type Context struct {
	driver *Driver
	device Device
	handle uintptr
}

// DevicePtr is an address on a device. The process can not touch what is there;
// adding to one goes to a later byte of the same allocation.
type DevicePtr uint64

// Device returns the context's device.
func (c *Context) Device() Device { return c.device }

// Release gives the context back; with the last one its memory and streams are gone.
func (c *Context) Release() error {
	return c.driver.do(cuDevicePrimaryCtxRelease, c.device.about(), uintptr(c.device.number))
}

// Alloc returns so many bytes of device memory, aligned to 256 at least. What is
// there is undefined. Errors: OutOfMemory.
func (c *Context) Alloc(bytes int64) (DevicePtr, error) {
	var p DevicePtr
	err := c.in(cuMemAlloc, fmt.Sprintf("%d bytes on GPU %d", bytes, c.device.number), uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	return p, err
}

// Free gives memory of Alloc back. It waits until the device is idle.
func (c *Context) Free(p DevicePtr) error {
	return c.in(cuMemFree, fmt.Sprintf("the memory at %#x", uint64(p)), uintptr(p))
}

// MemInfo returns the device's free memory and all of it, in bytes. What other
// processes take changes it at any time.
func (c *Context) MemInfo() (free, total int64, err error) {
	var f, t uintptr
	err = c.in(cuMemGetInfo, c.device.about(), uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t)))
	return int64(f), int64(t), err
}

// RegisterFlags say how host memory is registered.
type RegisterFlags uint32

// Flags of Register.
const (
	Portable  RegisterFlags = 1 // with all contexts of the process
	DeviceMap RegisterFlags = 2 // kernels and memory operations reach it as well
	ReadOnly  RegisterFlags = 8 // the device only reads it; what is mapped PROT_READ needs it
)

// Register pins host memory, which must be mapped memory and not Go's heap. All of
// its pages are allocated. A copy reaches one registration at most, so no block
// may cross the edge of one. Before a hole is punched into the memory, or it is
// unmapped, Unregister it: the device would go on reading the old pages.
// Errors: AlreadyRegistered; InvalidValue, of memory of a file system on a disk, too.
func (c *Context) Register(memory []byte, flags RegisterFlags) error {
	if len(memory) == 0 {
		return &Error{Call: names[cuMemHostRegister], About: "no memory", Code: InvalidValue, Remedy: "name a byte at least"}
	}
	return c.in(cuMemHostRegister, fmt.Sprintf("%d bytes of host memory", len(memory)), hostAddress(memory), uintptr(len(memory)), uintptr(flags))
}

// Unregister ends the registration of just this memory.
func (c *Context) Unregister(memory []byte) error {
	return c.in(cuMemHostUnregister, fmt.Sprintf("%d bytes of host memory", len(memory)), hostAddress(memory))
}

// Mapped returns the device's address of registered memory, of which memory may be
// a part.
func (c *Context) Mapped(memory []byte) (DevicePtr, error) {
	var p DevicePtr
	err := c.in(cuMemHostGetDevicePointer, fmt.Sprintf("%d bytes of host memory", len(memory)), uintptr(unsafe.Pointer(&p)), hostAddress(memory), 0)
	return p, err
}

// hostAddress returns where memory is, for a copy that may end later: it is never on
// the stack of a goroutine, which moves.
func hostAddress(b []byte) uintptr {
	p := unsafe.SliceData(b)
	if escapes.never {
		escapes.to = p
	}
	return uintptr(unsafe.Pointer(p))
}

// escapes has the compiler allocate what hostAddress is given on the heap. Nothing
// writes it.
var escapes struct {
	never bool
	to    *byte
}

// IPCHandle names an allocation to other processes of the machine that see the same
// GPU: any bytes of it name all of it.
type IPCHandle [64]byte

// Export returns the handle of memory of Alloc. Memory that an engine has mapped by
// pieces (expandable segments) has none: InvalidValue.
func (c *Context) Export(p DevicePtr) (IPCHandle, error) {
	var h IPCHandle
	err := c.in(cuIpcGetMemHandle, fmt.Sprintf("the memory at %#x", uint64(p)), uintptr(unsafe.Pointer(&h)), uintptr(p))
	return h, err
}

// Import maps an allocation of another process, until CloseImport. It outlives
// that process. A handle of the process itself is refused.
func (c *Context) Import(h IPCHandle) (DevicePtr, error) {
	var p DevicePtr
	err := c.open(&p, &h, "another process's memory")
	return p, err
}

// CloseImport ends Import.
func (c *Context) CloseImport(p DevicePtr) error {
	return c.in(cuIpcCloseMemHandle, fmt.Sprintf("the memory at %#x", uint64(p)), uintptr(p))
}

// lazyPeerAccess is the only flag of cuIpcOpenMemHandle, and required.
const lazyPeerAccess = 1
