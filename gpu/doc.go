// Package gpu is the place for device memory and for transfers between it and
// NVMe that keep the CPU off the critical path.
//
// Glossary
//
//	device memory  the memory of a GPU, HBM: tier 1 of CASCADE §III-B
//	critical path  what an engine waits for before it can go on
//
// Nothing is here yet: no code of this module touches a GPU, and a rank runs
// the same with or without one. The folder is reserved for
//
//	cuda/   the driver, found at run time; absent on most machines
//	gio/    gio_uring: I/O that the GPU submits itself
//	store/  blocks on local NVMe
//	slack/  the scheduler that fits transfers into idle time; pure
//
// The seams are tiers.Memory and tiers.Tier: tiers/hbm and tiers/nvme will
// adapt this package, and until then tiers/host may stand in for device
// memory. This package will not decide what stays or moves, and will know
// neither dht nor lustre.
//
// The folder kit has programs, none of them Go, that ask a machine with a GPU
// what all this is to be built on: make gpu-kit, docs/gpu.md.
package gpu
