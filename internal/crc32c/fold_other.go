//go:build !amd64

package crc32c

// hash/crc32 has instructions of its own on these.
const canFold = false

var wide bool

func fold(crc uint32, _ *byte, _ int, _ *[4]multipliers) uint32 { return crc }

func foldCopy(crc uint32, _, _ *byte, _ int, _ *[4]multipliers) uint32 { return crc }
