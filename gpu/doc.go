// Package gpu is the place for device memory and for transfers between it and
// NVMe that keep the CPU off the critical path.
//
// Glossary
//
//	device memory  the memory of a GPU, HBM: tier 1 of CASCADE §III-B
//	critical path  what an engine waits for before it can go on
//
// A rank runs the same with or without a GPU, and uses none yet. The folder has
//
//	cuda/    the driver, found at run time; absent on most machines
//	failure/ the words for a failed call of those libraries
//	nvml/    the GPUs of a machine, where cgo and NVIDIA's library are
//	hbm/     a memory tier in device memory
//	gio/     gio_uring: batches of I/O that a device starts by a store to memory
//	slack/   the scheduler that fits transfers into idle time; pure
//	store/   blocks on local NVMe, by objects of a layer each
//	nvme/    a memory tier on local disks, over store
//	direct/  reads of what lies there into memory of clients, by gio
//
// of which a rank uses nvme, and with it store, where that is configured, and direct
// for clients that ask for a ring. The program cascade-gpu uses cuda and nvml to look
// at GPUs and to try gio's kernel, hbm and gio to measure, and makes profiles for slack.
//
// The seam is tiers.Memory, which hbm and nvme have; in a rank tiers/host
// stands in for device memory. This package does not decide what stays or moves, and
// knows neither dht nor lustre.
//
// The folder kit has programs, none of them Go, that ask a machine with a GPU
// what all this is to be built on: make gpu-kit, docs/gpu.md.
package gpu
