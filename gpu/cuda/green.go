package cuda

import (
	"fmt"
	"unsafe"
)

// resource is CUdevResource, of which the driver has the rest to itself.
type resource struct {
	kind  int32
	_     [92]byte
	count uint32
	_     [44]byte
}

const (
	kindSM              = 1
	ignoreCoscheduling  = 1 // SMs that share hardware need not come together: smaller parts
	greenDefaultStreams = 1 // the only flag of cuGreenCtxCreate, and required
)

// SMs are streaming multiprocessors of a device, all or some.
type SMs struct {
	device Device
	r      resource
}

// Count is how many they are.
func (s SMs) Count() int { return int(s.r.count) }

// SMs returns all of a device. Errors: ErrMissing before CUDA 12.4; NotSupported.
func (d Device) SMs() (SMs, error) {
	s := SMs{device: d}
	err := d.driver.do(cuDeviceGetDevResource, d.about(), uintptr(d.number), uintptr(unsafe.Pointer(&s.r)), kindSM)
	return s, err
}

// Split returns a part of at least so many SMs: the driver rounds up, to what the device can set
// apart. Errors: ErrMissing, InvalidPartition where there are not so many.
func (s SMs) Split(least int) (SMs, error) {
	part, n := SMs{device: s.device}, uint32(1)
	err := s.device.driver.do(cuDevSmResourceSplitByCount, fmt.Sprintf("%d of %d SMs, GPU %d", least, s.Count(), s.device.number),
		uintptr(unsafe.Pointer(&part.r)), uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&s.r)), 0, ignoreCoscheduling, uintptr(uint32(least)))
	if err == nil && n != 1 {
		err = &Error{Call: names[cuDevSmResourceSplitByCount], About: s.device.about(), Code: InvalidPartition, Remedy: known[InvalidPartition].remedy}
	}
	return part, err
}

// Green is a context that computes on some of the SMs of its device. It shares the memory of the
// primary context, which somebody has retained as long as it exists.
type Green struct {
	device Device
	handle uintptr
}

// NewGreen returns a green context. Errors: ErrMissing, NotSupported, OutOfMemory.
func (c *Context) NewGreen(s SMs) (*Green, error) {
	var desc uintptr
	g, about := &Green{device: c.device}, fmt.Sprintf("%d SMs of GPU %d", s.Count(), c.device.number)
	if err := c.in(cuDevResourceGenerateDesc, about, uintptr(unsafe.Pointer(&desc)), uintptr(unsafe.Pointer(&s.r)), 1); err != nil {
		return nil, err
	}
	if err := c.in(cuGreenCtxCreate, about, uintptr(unsafe.Pointer(&g.handle)), desc, uintptr(c.device.number), greenDefaultStreams); err != nil {
		return nil, err
	}
	return g, nil
}

// Destroy ends the context.
func (g *Green) Destroy() error {
	return g.device.driver.do(cuGreenCtxDestroy, g.device.about(), g.handle)
}
