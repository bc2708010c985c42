package nvme

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// openPaths are the files of a directory that this process has open, one for each descriptor.
func openPaths(t *testing.T, dir string) (paths []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	noError(t, err)
	for _, fd := range all {
		if path, err := os.Readlink(fd); err == nil && strings.HasPrefix(path, dir) {
			paths = append(paths, path)
		}
	}
	return paths
}

// TestFilesThatHang: whoever has the files of a disk opened that hangs waits until its context ends, however many there are: one goroutine waits for
// the disk, and leaves nothing open when that has answered.
func TestFilesThatHang(t *testing.T) {
	dir := t.TempDir()
	o := inTest(dir, 64*unit)
	fs := vfstest.NewFault(vfs.OS{})
	o.FS, o.Direct = fs, true
	tr := mustOpen(t, o)
	defer tr.Close()
	l := tr.TakeLot()
	defer l.Close()
	before := len(openPaths(t, dir))
	hang := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpOpen, Path: poolPath, After: 1, Block: hang})
	late := make(chan error, 5)
	for i := range cap(late) {
		go func() {
			ctx := fs.UntilHung(t.Context(), 1)
			var err error
			if i%2 == 0 {
				_, err = tr.Containers(ctx)
			} else {
				_, err = l.Open(ctx)
			}
			late <- err
		}()
	}
	for range cap(late) {
		select {
		case err := <-late:
			wantErr(t, "files of a disk that hangs", err, tiers.ErrUnavailable, context.Canceled)
		case <-time.After(time.Minute):
			t.Fatal("an open of files waits for the disk")
		}
	}
	if fs.UntilHung(t.Context(), 2).Err() != nil {
		t.Error("several goroutines wait for the disk")
	}
	fs.Clear()
	close(hang)
	files, err := tr.Containers(t.Context()) // after those that hung
	noError(t, err)
	if n := len(openPaths(t, dir)); n != before+len(files) {
		t.Errorf("%d files are open, %d before and %d now", n, before, len(files))
	}
	closeFiles(files)
}
