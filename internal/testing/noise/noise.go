package noise

import (
	"encoding/binary"
	"math/rand/v2"
)

// Bytes returns n bytes of a seed.
func Bytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	Fill(p, seed)
	return p
}

// Fill overwrites p with the bytes of a seed.
func Fill(p []byte, seed uint64) {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(p) // it never fails
}
