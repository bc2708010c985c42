package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cascadekv/internal/testing/testneed"
)

// The owner of a link can make it lead to another directory while the rank
// serves in the first one.
func TestSocketDirectoryBehindTheLinkOfAnotherUser(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "root", "run this test as root: it makes links of another user")
	r := newRig(t, 16<<20)
	base := t.TempDir()
	link := filepath.Join(base, "link")
	if err := errors.Join(os.Mkdir(filepath.Join(base, "dir"), 0o700), os.Symlink("dir", link)); err != nil {
		t.Fatal(err)
	}
	l, err := r.srv.listenUnix(filepath.Join(link, "own"))
	if err != nil {
		t.Fatalf("a link of this user: %v", err)
	}
	_ = l.Close()
	if err := os.Lchown(link, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(link, "s"), filepath.Join(link, "to-be-made", "s")} {
		if l, err := r.srv.listenUnix(path); !errors.Is(err, ErrUnsafeSocket) {
			_ = l.Close()
			t.Errorf("%s: %v", path, err)
		}
	}
	if made, err := filepath.Glob(filepath.Join(base, "dir", "*")); err != nil || len(made) > 0 {
		t.Errorf("left behind the link: %v, %v", made, err)
	}
}
