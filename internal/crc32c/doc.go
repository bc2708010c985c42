// Package crc32c computes the checksum of every block and record: CRC-32 with
// Castagnoli's polynomial, as iSCSI, ext4 and Redis modules use it.
//
// The package gives the same numbers as hash/crc32. It exists because blocks are
// checksummed where they lie, in tier memory that no cache holds: the standard
// library reads three places of a buffer at once, which defeats the CPU's
// prefetcher, and gets a third of what one copy of the same memory gets. Here
// long inputs are folded with carry-less multiplication in one forward pass
// (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel 2009), on CPUs that multiply 512 or 256 bits at a time
// (AMD since Zen 4 and Zen 3, Intel since Ice Lake). Others, and short inputs,
// are left to hash/crc32.
//
// Glossary
//
//	fold      replace the front of an input by what it leaves modulo the
//	          polynomial some distance further on, so that the input gets shorter
//	          and its checksum stays
//	distance  how far a fold reaches, in bits; its two multipliers are powers of x
//	          modulo the polynomial
//
// The package does not frame, store or compare checksums.
package crc32c
