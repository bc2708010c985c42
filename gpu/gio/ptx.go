package gio

import _ "embed"

//go:generate ../../scripts/clang-ptx ptx/kernel.ptx

//go:embed ptx/kernel.ptx
var kernelPTX string

// KernelName is the entry of KernelPTX.
const KernelName = "gio_device"

// KernelPTX is the program of a device that is a GPU, of sm_70 or later: the entry
// gio_device(header, state, patience). header is the ring region (Server.Ring) and state
// KernelStateBytes, zeroed, of device memory, both where the device has
// them. One block of 32·(depth+1) threads runs it, so depth is at most
// MaxKernelDepth. It ends with the host's stop, or after patience nanoseconds
// without an IOCB that was issued or ended.
func KernelPTX() string { return kernelPTX }

// KernelStateBytes is the device memory that the kernel takes for a ring of depth IOCBs.
func KernelStateBytes(depth int) int { return 64 + 256*depth }

// MaxKernelDepth is the most IOCBs for which one block has a warp each.
const MaxKernelDepth = 31
