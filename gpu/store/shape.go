package store

import (
	"errors"
	"fmt"
)

// ErrShape marks a model that has no blocks of whole objects.
var ErrShape = errors.New("store: not a shape of blocks")

// page is what transfers are aligned to on disk, for O_DIRECT.
const page = 4096

// maxObjects bounds the objects of a GPU file.
const maxObjects = 8192

// Shape is how the blocks of one engine process are made.
type Shape struct {
	Layers       int // that this process has
	BlockTokens  int
	KVHeads      int // of the model, before it is divided
	HeadDim      int // elements of a head
	ElementBytes int
	TP           int // processes that divide the heads; 0 is 1
}

// heads is what one process has: a share, or one that several have alike.
func (s Shape) heads() int { return max(s.KVHeads/max(s.TP, 1), 1) }

// Objects returns how many objects a GPU file has: keys and values of each layer.
// Object 2l has the keys of layer l, object 2l+1 its values.
func (s Shape) Objects() int { return 2 * s.Layers }

// ObjectBytes returns the size of one object, which follows from TP.
func (s Shape) ObjectBytes() int64 {
	return int64(s.BlockTokens) * int64(s.heads()) * int64(s.HeadDim) * int64(s.ElementBytes)
}

// FileBytes returns the size of a block.
func (s Shape) FileBytes() int64 { return int64(s.Objects()) * s.ObjectBytes() }

// Check returns what is wrong with a shape. It matches ErrShape.
func (s Shape) Check() error {
	tp := max(s.TP, 1)
	switch {
	case s.Layers < 1 || s.Layers > maxObjects/2:
		return fmt.Errorf("%w: %d layers, 1 to %d wanted", ErrShape, s.Layers, maxObjects/2)
	case s.BlockTokens < 1 || s.KVHeads < 1 || s.HeadDim < 1 || s.ElementBytes < 1 || s.TP < 0,
		max(s.BlockTokens, s.KVHeads, s.HeadDim) > 1<<16 || s.ElementBytes > 16:
		return fmt.Errorf("%w: %d tokens, %d heads of %d elements of %d bytes", ErrShape, s.BlockTokens, s.KVHeads, s.HeadDim, s.ElementBytes)
	case s.KVHeads%tp != 0 && tp%s.KVHeads != 0:
		return fmt.Errorf("%w: %d heads are not divided by %d processes", ErrShape, s.KVHeads, tp)
	case s.ObjectBytes() > 1<<30:
		return fmt.Errorf("%w: objects of %d bytes, at most %d", ErrShape, s.ObjectBytes(), 1<<30)
	}
	return nil
}

// layout is where objects lie. All of it follows from four numbers.
type layout struct {
	objects int   // of a GPU file
	bytes   int64 // of an object
	dirs    int
	each    int // GPU files of a container
}

// maxContainer bounds the bytes of a container.
const maxContainer = 1 << 50

// check returns what is wrong with a layout of a shape that is right: offsets that
// no file has. It matches ErrShape.
func (l layout) check() error {
	if most := maxContainer / (int64(l.rows()) * l.stride()); int64(l.each) > most {
		return fmt.Errorf("%w: %d GPU files in a container, each with %d objects of %d bytes in it: %d at most", ErrShape, l.each, l.rows(), l.bytes, most)
	}
	return nil
}

// stride is the room of one object, whole pages.
func (l layout) stride() int64 { return (l.bytes + page - 1) / page * page }

// fileBytes is the size of a GPU file.
func (l layout) fileBytes() int64 { return int64(l.objects) * l.bytes }

// rows is how many objects of a GPU file a directory has, at most.
func (l layout) rows() int { return (l.objects + l.dirs - 1) / l.dirs }

// containerBytes is the size of a container: its header, and a share of each GPU file.
func (l layout) containerBytes() int64 {
	return page + int64(l.each)*int64(l.rows())*l.stride()
}

// place returns where an object lies: in which container, by its number among all, and
// at which offset. Containers of one group, those of the same GPU files, follow each other by
// directory.
func (l layout) place(file uint32, object int) (container int, offset int64) {
	group, within := int(file)/l.each, int(file)%l.each
	dir := (int(file) + object) % l.dirs
	return group*l.dirs + dir, page + int64(within*l.rows()+object/l.dirs)*l.stride()
}
