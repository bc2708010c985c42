package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"path"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/tiers"
)

// small is a model of 3 layers with objects of 2 pages and some bytes, so that padding,
// and pieces of memory that are cut, are there.
var small = Shape{Layers: 3, BlockTokens: 16, KVHeads: 4, HeadDim: 33, ElementBytes: 4}

// host is an engine's memory in this process, at addresses of its own.
type host struct {
	shape Shape
	base  uint64
	mem   []byte
	slots int
}

func newHost(shape Shape, slots int) *host {
	return &host{shape, 0x7000_0000_1000, make([]byte, int64(slots)*shape.FileBytes()), slots}
}

func (h *host) memory() Memory {
	m := Memory{Slots: h.slots, Granule: 8192}
	each := uint64(h.slots) * uint64(h.shape.ObjectBytes())
	for o := range h.shape.Objects() {
		m.Tensors = append(m.Tensors, Tensor{h.base + uint64(o)*each, h.shape.ObjectBytes()})
	}
	return m
}

func (h *host) bytes(addr uint64, n int64) []byte {
	at := int64(addr - h.base)
	if addr < h.base || at+n > int64(len(h.mem)) {
		return nil
	}
	return h.mem[at : at+n : at+n]
}

// object is the memory of an object in a slot.
func (h *host) object(o, slot int) []byte {
	n := h.shape.ObjectBytes()
	return h.mem[(int64(o)*int64(h.slots)+int64(slot))*n:][:n]
}

// content is the object of a block: its own for each.
func (h *host) content(id block.ID, o int) []byte {
	return noise.Bytes(binary.LittleEndian.Uint64(id[:])+uint64(o)<<32, int(h.shape.ObjectBytes()))
}

// put writes what a block consists of to a slot.
func (h *host) put(id block.ID, slot int) {
	for o := range h.shape.Objects() {
		copy(h.object(o, slot), h.content(id, o))
	}
}

// holds reports whether a slot has the block.
func (h *host) holds(id block.ID, slot int) bool {
	for o := range h.shape.Objects() {
		if !bytes.Equal(h.object(o, slot), h.content(id, o)) {
			return false
		}
	}
	return true
}

func (h *host) wipe() {
	for i := range h.mem {
		h.mem[i] = 0xEE
	}
}

func ids(from, n int) []block.ID {
	all := make([]block.ID, n)
	for i := range all {
		binary.LittleEndian.PutUint64(all[i][:], uint64(from+i)+1)
		all[i][15] = 1
	}
	return all
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// disks is a file system in memory with directories for a pool.
func disks(t *testing.T, n int) (*vfstest.Crash, []string) {
	t.Helper()
	fs := vfstest.NewCrash()
	var dirs []string
	for d := range n {
		dirs = append(dirs, path.Join("/", "nvme"+string(rune('0'+d))))
		if err := fs.Mkdir(dirs[d], 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return fs, dirs
}

func (h *host) options(dirs []string, files int) Options {
	return Options{Dirs: dirs, Shape: h.shape, Files: files, ContainerFiles: 4, Memory: h.memory(), Bytes: h.bytes}
}

// rig is disks, memory with slots for blocks, and options for a pool of files between them.
func rig(t *testing.T, n int, shape Shape, slots, files int) (*vfstest.Crash, *host, Options) {
	t.Helper()
	fs, dirs := disks(t, n)
	h := newHost(shape, slots)
	o := h.options(dirs, files)
	o.FS, o.unlocked = fs, true
	return fs, h, o
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	grown(t, s)
	return s
}

// grown waits until the pool is as large as the disks let it be.
func grown(t *testing.T, s *Store) {
	t.Helper()
	if err := s.WaitGrown(t.Context()); err != nil && !errors.Is(err, tiers.ErrFull) {
		t.Fatal(err)
	}
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// store puts blocks, from slots 0 on, and returns the first error.
func (h *host) store(s *Store, all []block.ID) error {
	ctx := context.Background()
	p, err := s.Reserve(ctx, all)
	if err != nil {
		return err
	}
	for i, id := range all {
		h.put(id, i)
	}
	for l := range h.shape.Layers {
		if err := p.StoreLayer(ctx, l, upTo(len(all))); err != nil {
			<-p.Abort()
			return err
		}
	}
	_, quiet, err := p.Commit(ctx)
	<-quiet
	return err
}

func (h *host) mustStore(t *testing.T, s *Store, all []block.ID) {
	t.Helper()
	if err := h.store(s, all); err != nil {
		t.Fatal(err)
	}
}

// check reads blocks one by one, and reports how many came. One that came with other
// bytes than were put ends the test.
func (h *host) check(t *testing.T, s *Store, all []block.ID) (found int) {
	t.Helper()
	for _, id := range all {
		g, err := s.Retrieve([]block.ID{id})
		if err != nil {
			t.Fatal(err)
		}
		good := g.Blocks() == 1
		for o := 0; good && o < h.shape.Objects(); o++ {
			clear(h.object(o, 0))
		}
		for l := range h.shape.Layers {
			if errs := g.RetrieveLayer(context.Background(), l, upTo(g.Blocks())); errs != nil {
				good = false
			}
		}
		<-g.Close()
		if good {
			found++
			if !h.holds(id, 0) {
				t.Fatalf("block %v has other bytes", id)
			}
		}
	}
	return found
}
