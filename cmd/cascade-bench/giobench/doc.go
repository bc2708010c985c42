// Package giobench measures reads that a device triggers through gpu/gio: against
// fio by io_uring at the same depth, and against a pool of threads that call
// pread. All three read blocks of 128 KiB of one file past the page cache, in any
// order, and take turns, in each of which one side reads as much as the data memory
// has.
//
// Then gio's own ways are compared: reads and writes in flight together with the same
// reads and then the same writes, and commands of 128 KiB with such of 4 KiB, over the
// same files, memory and depth. What was written is read back and compared as well.
//
// The device is a process of this program whose one thread may make no system
// call: a GPU's place is taken by a CPU, whose time is given apart. Every byte that
// gio and the pool read is compared.
//
// The package does not judge its figures, and measures no GPU.
package giobench
