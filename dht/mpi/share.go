//go:build mpi

package mpi

import (
	"encoding/binary"
	"fmt"

	gompi "github.com/sbromberger/gompi"
)

// MaxShare bounds what Share carries, in bytes.
const MaxShare = 1020

// Share gives every process what rank 0 passes; the others pass nil. All call
// it, it waits for them, and burns a core meanwhile: it is for starting.
func (w *World) Share(p []byte) ([]byte, error) {
	if len(p) > MaxShare {
		return nil, fmt.Errorf("mpi: share of %d bytes, at most %d", len(p), MaxShare)
	}
	var buf [MaxShare + 4]byte
	binary.LittleEndian.PutUint32(buf[:], uint32(len(p)))
	copy(buf[4:], p)
	// As numbers: gompi's broadcast of bytes writes past its buffer.
	words := make([]int32, len(buf)/4)
	for i := range words {
		words[i] = int32(binary.LittleEndian.Uint32(buf[4*i:]))
	}
	done := make(chan struct{})
	w.calls <- func() {
		gompi.NewCommunicator(nil).BcastInt32s(words, 0)
		close(done)
	}
	<-done
	for i, n := range words {
		binary.LittleEndian.PutUint32(buf[4*i:], uint32(n))
	}
	n := binary.LittleEndian.Uint32(buf[:])
	if n > MaxShare {
		return nil, fmt.Errorf("mpi: rank 0 shared %d bytes, at most %d: do all ranks run one version?", n, MaxShare)
	}
	return buf[4 : 4+n], nil
}
