// Package nvml finds the GPUs of a machine by NVIDIA's management library, which
// comes with the driver: memory and what of it is in use, MIG, the link and the NUMA
// node, health, and which switches lie between two GPUs.
//
// Unlike gpu/cuda it sees all GPUs, makes no context and takes no device memory, and
// it needs cgo: in a build without, Open returns ErrNoLibrary and says so. What a GPU
// or its driver does not know is -1, or missing. The library is loaded when Open is
// called.
//
// The package changes nothing on a GPU, and does not decide which of them is used.
package nvml
