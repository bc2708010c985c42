package crc32c

import "golang.org/x/sys/cpu"

// canFold tells whether the CPU multiplies 256 bits at a time. x/sys/cpu knows
// the feature only together with AVX-512, which Zen 3 lacks.
var canFold = cpu.X86.HasAVX2 && cpu.X86.HasSSE42 && cpu.X86.HasPCLMULQDQ && extendedFeatures()&(1<<10) != 0

// extendedFeatures returns ECX of CPUID leaf 7, or 0 where there is none.
func extendedFeatures() uint32

// fold returns the CRC of blocks·foldBlock bytes at p, blocks ≥ 1, without the
// inversions before and after.
//
//go:noescape
func fold(crc uint32, p *byte, blocks int, k *[3]multipliers) uint32

// foldCopy is fold, and copies the blocks to dst, whose address is a multiple
// of foldAlign, past the CPU's caches.
//
//go:noescape
func foldCopy(crc uint32, dst, p *byte, blocks int, k *[3]multipliers) uint32
