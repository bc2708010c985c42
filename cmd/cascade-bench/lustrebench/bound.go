package lustrebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/vfs"
)

// longIn is the file in a folder that has all memory of a set.
func longIn(dir string) string { return filepath.Join(dir, "long") }

func (b *bench) writeLong(_ context.Context, dir string, s *set, _ int) (float64, error) {
	began := time.Now()
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = writeDurably(longIn(dir), s.from.mapping.Bytes())
	}
	if err != nil {
		return 0, fmt.Errorf("bench: one long file: %w", err)
	}
	return s.rate(time.Since(began)), nil
}

// readLong reads the file past the page cache, where that works, into the memory
// that blocks are read into: nothing on this disk can be read into it faster.
func (b *bench) readLong(ctx context.Context, dir string, s *set, callers int) (float64, error) {
	if err := kit.DropCache(dir); err != nil {
		return 0, err
	}
	fs := vfs.NewDirect(vfs.OS{})
	defer fs.Close()
	f, err := fs.Open(longIn(dir))
	if err != nil {
		return 0, fmt.Errorf("bench: one long file: %w", err)
	}
	room := s.room.mapping.Bytes()
	took, err := kit.Parallel(callers, (len(room)+limitBlock-1)/limitBlock, func(_, i int) error {
		p := room[i*limitBlock : min((i+1)*limitBlock, len(room))]
		_, err := f.Pread(p, int64(i)*limitBlock)
		return errors.Join(ctx.Err(), err)
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("bench: one long file: %w", err)
	}
	return float64(len(room)) / kit.Mega / took.Seconds(), s.check()
}
