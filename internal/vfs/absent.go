package vfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
)

// Absent returns which names a directory does not have, by one listing of it; what that
// does not have is opened too, for a listing may be wrong. When the directory is not there
// either it returns all of them and an error that is os.ErrNotExist; after any other
// error nothing is known.
func Absent(fs FS, dir string, names []string) (absent []string, err error) {
	listed, err := fs.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		if _, there := slices.BinarySearch(listed, name); there {
			continue
		}
		h, err := fs.Open(filepath.Join(dir, name))
		if err == nil {
			_ = h.Close() // nothing was read: its error means nothing
		}
		if errors.Is(err, os.ErrNotExist) {
			absent = append(absent, name)
		}
	}
	return absent, err
}
