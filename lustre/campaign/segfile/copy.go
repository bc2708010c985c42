package segfile

import (
	"fmt"
	"io"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// Copier copies payloads from a segment and checks them on the way. It is the
// payload function of format.Draft for entries of one file.
type Copier struct {
	win window
}

// NewCopier reads from f through buf, at least 64 KiB; the caller closes f.
func NewCopier(f vfs.File, buf []byte, progress func(int64)) (*Copier, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	return &Copier{window{f: f, size: size, buf: buf, progress: progress, straight: true}}, nil
}

// Copy writes the payload of e to w. Errors: ErrCorrupt when it does not match
// the entry, or one of the file or of w.
func (c *Copier) Copy(e *format.Entry, w io.Writer) error {
	var crc uint32
	var werr error
	err := c.win.each(e.Off, e.Stored, func(p []byte) {
		crc = block.ExtendCRC(crc, p)
		if werr == nil {
			_, werr = w.Write(p)
		}
	})
	switch {
	case err != nil:
		return err
	case werr != nil:
		return werr
	case crc != e.StoredCRC:
		return fmt.Errorf("%w: block %v: CRC32C %08x, want %08x", tiers.ErrCorrupt, e.Info.ID, crc, e.StoredCRC)
	}
	return nil
}
