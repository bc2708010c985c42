package crc32c

import "golang.org/x/sys/cpu"

// canFold reports whether the CPU multiplies 256 bits at a time, wide whether 512.
// x/sys/cpu knows the multiplication only together with AVX-512, which Zen 3
// lacks.
var (
	canFold = cpu.X86.HasAVX2 && cpu.X86.HasSSE42 && cpu.X86.HasPCLMULQDQ && extendedFeatures()&(1<<10) != 0
	wide    = canFold && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ
)

// extendedFeatures returns ECX of CPUID leaf 7, or 0 where there is none.
func extendedFeatures() uint32

// fold returns the CRC of blocks·foldBlock bytes at p, blocks ≥ 1, without the
// inversions before and after.
func fold(crc uint32, p *byte, blocks int, k *[4]multipliers) uint32 {
	if wide {
		return fold512(crc, p, blocks, k)
	}
	return fold256(crc, p, blocks, k)
}

// foldCopy is fold, and copies the blocks to dst, whose address is a multiple
// of foldAlign, past the CPU's caches.
func foldCopy(crc uint32, dst, p *byte, blocks int, k *[4]multipliers) uint32 {
	if wide {
		return foldCopy512(crc, dst, p, blocks, k)
	}
	return foldCopy256(crc, dst, p, blocks, k)
}

//go:noescape
func fold256(crc uint32, p *byte, blocks int, k *[4]multipliers) uint32

//go:noescape
func fold512(crc uint32, p *byte, blocks int, k *[4]multipliers) uint32

//go:noescape
func foldCopy256(crc uint32, dst, p *byte, blocks int, k *[4]multipliers) uint32

//go:noescape
func foldCopy512(crc uint32, dst, p *byte, blocks int, k *[4]multipliers) uint32
