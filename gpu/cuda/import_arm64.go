package cuda

import "unsafe"

// open calls cuIpcOpenMemHandle(p, h, flags). A struct of more than 16 bytes is
// handed over by its address here.
func (c *Context) open(p *DevicePtr, h *IPCHandle, about string) error {
	return c.in(cuIpcOpenMemHandle, about, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(h)), lazyPeerAccess)
}
