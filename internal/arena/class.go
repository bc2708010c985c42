package arena

import "math/bits"

const (
	// Page is the unit of runs, in bytes. Payloads larger than MaxCell start
	// on a page, as O_DIRECT and sendfile like it.
	Page = 4096

	// MaxCell is the largest object kept in a slab, in bytes. Above it one
	// page more or less is at most one part in eight.
	MaxCell = 28 << 10

	minCell   = 64
	smallSlab = 16 // pages of a slab whose cells are at most one page
	largeSlab = 64 // pages of a slab of larger cells: the tail wastes less than 9 %
)

// RoundSize returns the bytes an object of size bytes occupies: a multiple of
// 64 up to 512, then one of eight sizes for each doubling, page-sized steps at
// least above MaxCell. For size > 448, (RoundSize(size)-size)/RoundSize(size)
// is below 1/8.
func RoundSize(size int64) int64 {
	switch {
	case size <= 0:
		return 0
	case size <= 512:
		return (size + minCell - 1) &^ (minCell - 1)
	}
	step := int64(1) << (bits.Len64(uint64(size-1)) - 4)
	if size > MaxCell {
		step = max(step, Page)
	}
	return (size + step - 1) &^ (step - 1)
}

// cellClass numbers the cell sizes: 0..7 for 64..512, then eight to a doubling.
func cellClass(cell int64) int {
	if cell <= 512 {
		return int(cell/minCell) - 1
	}
	shift := bits.Len64(uint64(cell-1)) - 4 // cell is (9..16) << shift
	return 8 + (shift-6)*8 + int(cell>>shift) - 9
}

// cellSize is the inverse of cellClass.
func cellSize(class int) int64 {
	if class < 8 {
		return int64(class+1) * minCell
	}
	class -= 8
	return int64(9+class%8) << (6 + class/8)
}

// numClasses is the number of cell classes, up to MaxCell.
var numClasses = cellClass(MaxCell) + 1

// slabPages is the length of a slab of the given cell size.
func slabPages(cell int64) int64 {
	if cell <= Page {
		return smallSlab
	}
	return largeSlab
}
