// Package fakecuda builds the stand-in for libcuda (gpu/kit/fakecuda.c, whose
// comment has its rules) for tests, with the system's C compiler.
//
// Device memory there lies where the process may not touch it. The package opens
// no driver, and is for tests only.
package fakecuda
