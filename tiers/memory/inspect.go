package memory

import (
	"fmt"
	"io"

	"cascadekv/internal/arena"
	"cascadekv/internal/block"
)

// Contents is what the records of an arena file say that it holds.
type Contents struct {
	Blocks, Names int
	Bytes         int64 // of the blocks
}

// JobOf returns the Slurm job whose process has an arena file, or had it last, by its first
// page; 0 for none. unfinished: the process was at the start of making the file, which has no
// mark of an arena yet. The error matches ErrOtherLayout for what can be no arena.
func JobOf(file io.ReaderAt) (job uint64, unfinished bool, err error) {
	var head [offJob + 8]byte
	if _, err := file.ReadAt(head[:], 0); err != nil {
		return 0, false, fmt.Errorf("memory: %w: %w", ErrOtherLayout, err)
	}
	unfinished = [offJob]byte(head[:]) == [offJob]byte{}
	whole := string(head[:len(superMagic)]) == superMagic && le.Uint32(head[offSuperCRC:]) == block.CRC(head[:offSuperCRC])
	if !unfinished && !whole {
		return 0, false, ErrOtherLayout
	}
	return le.Uint64(head[offJob:]), unfinished, nil
}

// Inspect reads the records of an arena file of size bytes without changing it.
// While a rank uses the file the result is an approximation; checksums of blocks
// are not compared. The error matches ErrOtherLayout for a file that is no arena of
// this version.
func Inspect(file io.ReaderAt, size int64) (Contents, error) {
	var c Contents
	page := make([]byte, arena.Page)
	if size < MinBytes {
		return c, fmt.Errorf("memory: %d bytes: %w", size, ErrOtherLayout)
	}
	if _, err := file.ReadAt(page, 0); err != nil {
		return c, fmt.Errorf("memory: %w", err)
	}
	g := geometryOf(size)
	if err := g.checkSuper(page); err != nil {
		return c, fmt.Errorf("memory: %d bytes: %w", size, err)
	}
	tags := make([]byte, g.capacity/arena.Page)
	if _, err := file.ReadAt(tags, g.tags); err != nil {
		return c, fmt.Errorf("memory: %w", err)
	}
	ready := min(max(loadReady(page), 0), g.capacity)
	window := make([]byte, inspectStep)
	at, have := int64(0), int64(0) // what of the data area is in window
	var failed error
	arena.WalkRecords(tags, ready, func(off, cell int64) {
		if failed != nil {
			return
		}
		if off < at || off+cell > at+have {
			at, have = off, min(inspectStep, g.capacity-off)
			_, failed = file.ReadAt(window[:have], g.data+at)
		}
		p := window[off-at:][:cell]
		if b, ok := readBlockRecord(p); ok {
			c.Blocks++
			c.Bytes += b.info.Size
		} else if _, _, ok := readName(p); ok {
			c.Names++
		}
	})
	if failed != nil {
		return c, fmt.Errorf("memory: %w", failed)
	}
	return c, nil
}

// inspectStep is how much of a file is read at a time, in bytes; no cell is as
// large.
const inspectStep = 64 << 10
