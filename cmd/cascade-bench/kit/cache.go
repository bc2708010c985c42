package kit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Settle waits until the file system of a directory has written everything, also
// what one phase left behind and another would wait for: what became of removed
// files, and its journal.
func Settle(dir string) error {
	f, err := os.Open(dir)
	if err == nil {
		err = errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
	}
	if err != nil {
		return fmt.Errorf("bench: let %s come to rest: %w", dir, err)
	}
	return nil
}

// DropCache drops all files below dir from the page cache, and settles. They must
// have been synced.
func DropCache(dir string) error {
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
	})
	if err != nil {
		return fmt.Errorf("bench: drop files from the page cache: %w", err)
	}
	return Settle(dir)
}
