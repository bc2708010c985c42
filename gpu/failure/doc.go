// Package failure words the failure of a call of a vendor's library: what was called,
// of what, what the library said, and what to do about it.
//
//	cuMemAlloc_v2 of 8 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2): ask for less
//
// The package does not know any library: results, their names and remedies are the
// callers'.
package failure
