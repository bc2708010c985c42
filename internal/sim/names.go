package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/internal/block"
)

const (
	namespace  = "sim"
	blockBytes = 64 // of each name's block; what is counted does not depend on it
)

// names are all names of a simulation. They never change, so all ranks use
// them without a lock; whether a rank still has its own is the rank's.
type names struct {
	chain  int
	keys   []string
	owners []fabric.Rank
	infos  []block.Info
	slab   []byte // mapped: the blocks one after the other, then room for readers
}

// newNames draws names and owners; the caller unmaps it. readers is how many
// blocks are read at a time.
func newNames(o Options, readers int) (*names, error) {
	chains := (o.Ranks*o.Names + o.Chain - 1) / o.Chain
	n := chains * o.Chain
	slab, err := unix.Mmap(-1, 0, (n+readers)*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("sim: memory for %d blocks of %d bytes: %w", n+readers, blockBytes, err)
	}
	s := &names{chain: o.Chain, keys: make([]string, n), owners: make([]fabric.Rank, n), infos: make([]block.Info, n), slab: slab}
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	for i := range n {
		s.keys[i] = fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())
		if i%o.Chain == 0 {
			s.owners[i] = fabric.Rank(rng.IntN(o.Ranks))
		} else {
			s.owners[i] = s.owners[i-1]
		}
		b := s.block(i)
		s.fill(b, i)
		s.infos[i] = block.Info{ID: block.Sum(block.Bits128, b), Size: blockBytes, CRC: block.CRC(b)}
	}
	return s, nil
}

func (s *names) unmap() error { return unix.Munmap(s.slab) }

// block is a name's place in the slab.
func (s *names) block(i int) []byte { return s.slab[i*blockBytes:][:blockBytes:blockBytes] }

// room is where a reader puts what it reads.
func (s *names) room(reader int) []byte { return s.block(len(s.keys) + reader) }

// fill writes the bytes that belong to a name and to no other.
func (s *names) fill(b []byte, i int) {
	copy(b, s.keys[i])
	for at := len(s.keys[i]); at+8 <= len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], uint64(i)*0x9e3779b97f4a7c15+uint64(at))
	}
}

// right reports whether b holds a name's bytes.
func (s *names) right(b []byte, i int) bool {
	var want [blockBytes]byte
	s.fill(want[:], i)
	return bytes.Equal(b, want[:])
}

// statement is what the owner of a name states of it. version is how often it stated
// something before; held false: that it has the block no more.
func (s *names) statement(i, version int, held bool) directory.Statement {
	st := directory.Statement{
		Name:    block.Name{Namespace: namespace, Key: s.keys[i], Depth: uint32(i % s.chain), Seq: uint64(i) + 1},
		Version: uint64(version) + 1,
	}
	if i%s.chain > 0 {
		st.Name.Parent = s.keys[i-1]
	}
	if held {
		st.Info = s.infos[i]
		st.Memory = &directory.Memory{Offset: int64(i) * blockBytes, Generation: generation(i, version)}
	}
	return st
}

// generation is one stay of a name's block at its place. A block that moves
// comes to lie where it was: only its generation is another.
func generation(i, version int) uint64 { return uint64(version)<<32 + uint64(i) + 7 }
