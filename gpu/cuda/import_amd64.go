package cuda

import (
	"encoding/binary"
	"unsafe"
)

// open calls cuIpcOpenMemHandle(p, h, flags). A struct of 64 bytes goes on the stack
// here, behind what takes the six registers.
func (c *Context) open(p *DevicePtr, h *IPCHandle, about string) error {
	var w [len(h) / 8]uintptr
	for i := range w {
		w[i] = uintptr(binary.NativeEndian.Uint64(h[8*i:]))
	}
	return c.in(cuIpcOpenMemHandle, about, uintptr(unsafe.Pointer(p)), lazyPeerAccess, 0, 0, 0, 0, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
}
