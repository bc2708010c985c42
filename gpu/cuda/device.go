package cuda

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unsafe"
)

// Attribute is a property of a device (CUdevice_attribute).
type Attribute int32

// Attributes that decide what a rank can do with a GPU. Yes is 1.
const (
	ThreadsPerWarp        Attribute = 10
	Multiprocessors       Attribute = 16
	PCIBus                Attribute = 33
	ThreadsPerSM          Attribute = 39 // at most, of all blocks there
	AsyncEngines          Attribute = 40 // copy engines
	UnifiedAddressing     Attribute = 41
	CapabilityMajor       Attribute = 75
	CapabilityMinor       Attribute = 76
	HostPointerRegistered Attribute = 91 // registered memory has the process's address on the device
	FlushRemoteWrites     Attribute = 98
	HostRegister          Attribute = 99
	StreamWaitNOR         Attribute = 123
	DMABuf                Attribute = 124
)

// Device is a GPU that the process sees, or a part of one (MIG).
type Device struct {
	driver *Driver
	number int32
}

// Device returns a GPU by its number, from 0. Errors: InvalidDevice.
func (d *Driver) Device(number int) (Device, error) {
	dev := Device{driver: d}
	err := d.do(cuDeviceGet, fmt.Sprintf("GPU %d", number), uintptr(unsafe.Pointer(&dev.number)), uintptr(number))
	return dev, err
}

func (d Device) about() string { return fmt.Sprintf("GPU %d", d.number) }

// Number is the driver's number of the device.
func (d Device) Number() int { return int(d.number) }

// Name is what its maker calls the device.
func (d Device) Name() (string, error) {
	var b [256]byte
	err := d.driver.do(cuDeviceGetName, d.about(), uintptr(unsafe.Pointer(&b)), uintptr(len(b)), uintptr(d.number))
	return text(b[:]), err
}

// PCI returns the device's address on the bus as sysfs has it: "0000:1b:00.0".
func (d Device) PCI() (string, error) {
	var b [32]byte
	err := d.driver.do(cuDeviceGetPCIBusID, d.about(), uintptr(unsafe.Pointer(&b)), uintptr(len(b)), uintptr(d.number))
	return strings.ToLower(text(b[:])), err
}

// UUID returns the device's identity as nvidia-smi prints it, "GPU-…"; a part of a
// GPU has one of its own.
func (d Device) UUID() (string, error) {
	var b [16]byte
	if err := d.driver.do(cuDeviceGetUUID, d.about(), uintptr(unsafe.Pointer(&b)), uintptr(d.number)); err != nil {
		return "", err
	}
	h := hex.EncodeToString(b[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-"), nil
}

// Bytes returns the memory of the device, taken or not.
func (d Device) Bytes() (int64, error) {
	var n uintptr
	err := d.driver.do(cuDeviceTotalMem, d.about(), uintptr(unsafe.Pointer(&n)), uintptr(d.number))
	return int64(n), err
}

// Attribute returns a property. Errors: InvalidValue where the driver is too old
// to know it.
func (d Device) Attribute(a Attribute) (int, error) {
	var v int32
	err := d.driver.do(cuDeviceGetAttribute, fmt.Sprintf("attribute %d, GPU %d", a, d.number), uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(d.number))
	return int(v), err
}

// Retain returns the device's primary context, which all users in the process
// share, and makes it where nobody has it yet: about 0.5 GiB of device memory and
// 0.4 s on an H200. Release it once for each Retain.
func (d Device) Retain() (*Context, error) {
	c := &Context{driver: d.driver, device: d}
	if err := d.driver.do(cuDevicePrimaryCtxRetain, d.about(), uintptr(unsafe.Pointer(&c.handle)), uintptr(d.number)); err != nil {
		return nil, err
	}
	return c, nil
}
