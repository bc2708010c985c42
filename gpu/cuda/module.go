package cuda

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Module is a program in a context, compiled for its device.
type Module struct {
	context *Context
	handle  uintptr
}

// LoadModule compiles PTX and loads it, which takes some 10 ms to seconds. It waits while any
// stream of the process waits for a word. Errors: InvalidPTX, UnsupportedPTX, NoJITCompiler.
func (c *Context) LoadModule(ptx string) (*Module, error) {
	m, image := &Module{context: c}, append([]byte(ptx), 0)
	if err := c.in(cuModuleLoadData, fmt.Sprintf("%d bytes of PTX", len(ptx)), uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(unsafe.SliceData(image)))); err != nil {
		return nil, err
	}
	return m, nil
}

// Unload ends the module and its functions, none of which may be under way. It waits while
// any stream of the process waits for a word.
func (m *Module) Unload() error { return m.context.in(cuModuleUnload, "a module", m.handle) }

// Function is a kernel of a module, and valid as long as that.
type Function struct {
	name   string
	handle uintptr
}

// Function returns a kernel by its name. Errors: NotFound.
func (m *Module) Function(name string) (Function, error) {
	f, symbol := Function{name: name}, append([]byte(name), 0)
	err := m.context.in(cuModuleGetFunction, name, uintptr(unsafe.Pointer(&f.handle)), m.handle, uintptr(unsafe.Pointer(unsafe.SliceData(symbol))))
	return f, err
}

// Launch queues a kernel of one dimension: so many blocks of so many threads. Its parameters
// must be args, all of 64 bits. What they point to is the kernel's until the stream has come past it. Errors:
// InvalidValue, LaunchOutOfResources.
func (s *Stream) Launch(f Function, blocks, threads int, args ...uint64) error {
	values := append(make([]uint64, 0, len(args)+1), args...)
	at := make([]unsafe.Pointer, len(args), len(args)+1)
	for i := range at {
		at[i] = unsafe.Pointer(&values[i])
	}
	err := s.context.in(cuLaunchKernel, fmt.Sprintf("%s, %d blocks of %d threads", f.name, blocks, threads), f.handle, uintptr(blocks), 1, 1, uintptr(threads), 1, 1, 0, s.handle,
		uintptr(unsafe.Pointer(unsafe.SliceData(at))), 0)
	runtime.KeepAlive(values)
	return err
}
