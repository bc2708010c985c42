package index

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"cascadekv/internal/crc32c"
)

func garbage(n int, r *rand.Rand) []byte {
	p := make([]byte, 0, n+8)
	for len(p) < n {
		p = binary.LittleEndian.AppendUint64(p, r.Uint64())
	}
	return p[:n]
}

func flip(p []byte, r *rand.Rand) []byte {
	p = slices.Clone(p)
	if len(p) > 0 {
		p[r.IntN(len(p))] ^= 1 << r.IntN(8)
	}
	return p
}

func readAll(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	p, err := io.ReadAll(f)
	return p, errors.Join(err, f.Close())
}

func writeAll(fs vfs.FS, path string, p []byte) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	return errors.Join(err, f.Sync(), f.Close())
}

// sealHeader gives a changed header a checksum that is right.
func sealHeader(p []byte) []byte {
	binary.LittleEndian.PutUint32(p[headerSize-4:], crc32c.Checksum(p[:headerSize-4]))
	return p
}
