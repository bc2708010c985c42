package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"cascadekv/internal/vfs"
)

// longFile is all memory of a set in one file, in a folder of its own.
type longFile struct {
	b    *lustreBench
	s    *set
	path string
}

func (b *lustreBench) writeLong(s *set) (*longFile, error) {
	dir := b.folder()
	err := os.Mkdir(dir, 0o700)
	l := &longFile{b, s, filepath.Join(dir, "long")}
	if err == nil {
		err = writeDurably(l.path, s.from.mapping.Bytes())
	}
	if err != nil {
		return nil, fmt.Errorf("bench: one long file: %w", err)
	}
	return l, nil
}

// read tells how fast the file comes, past the page cache where that works, into
// the memory that blocks are read into: nothing that lies on this disk can be read
// into it faster.
func (l *longFile) read(ctx context.Context) (rate float64, err error) {
	if err := dropCache(filepath.Dir(l.path)); err != nil {
		return 0, err
	}
	fs := vfs.NewDirect(vfs.OS{})
	defer fs.Close()
	f, err := fs.Open(l.path)
	if err != nil {
		return 0, fmt.Errorf("bench: one long file: %w", err)
	}
	room := l.s.room.mapping.Bytes()
	took, err := each(l.b.o.Depth, (len(room)+limitBlock-1)/limitBlock, func(_, i int) error {
		p := room[i*limitBlock : min((i+1)*limitBlock, len(room))]
		_, err := f.Pread(p, int64(i)*limitBlock)
		return errors.Join(ctx.Err(), err)
	})
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("bench: one long file: %w", err)
	}
	return float64(len(room)) / mega / took.Seconds(), l.s.check()
}

func (l *longFile) remove() error { return l.b.remove(filepath.Dir(l.path)) }
