package notes

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// add adds a note, and fails the test if it can not.
func add(t *testing.T, dir string, job int, path string) (remove func()) {
	t.Helper()
	remove, err := Add(dir, job, path)
	if err != nil {
		t.Fatal(err)
	}
	return remove
}

// socket leaves a socket without a listener, or returns one that listens.
func socket(t *testing.T, path string, listens bool) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if listens {
		t.Cleanup(func() { l.Close() })
		return
	}
	l.Close()
}

func launchDir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "secret"), []byte("s"), 0o600),
		os.Symlink("/etc", filepath.Join(path, "link")), os.Chmod(path, mode))
	if err != nil {
		t.Fatal(err)
	}
}

// TestRemoveJob: what a job has noted goes, if it is the kind of thing that is noted and nobody has it in use. Nothing
// is followed, and what other jobs noted stays.
func TestRemoveJob(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	dir := at("notes")
	socket(t, at("odd \n*?.sock"), false)
	socket(t, at("live.sock"), true)
	socket(t, at("other.sock"), false)
	launchDir(t, at(".cascade-7-n0"), 0o700)
	launchDir(t, at(".cascade-open"), 0o755)
	launchDir(t, at("home"), 0o700)
	launchDir(t, at("real"), 0o700)
	err := errors.Join(os.Symlink(at("real"), at(".cascade-link")), os.WriteFile(at("file"), nil, 0o600),
		os.Mkdir(at(".cascade-full"), 0o700), os.Mkdir(at(".cascade-full/sub"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	kept := []string{"live.sock", ".cascade-open", "home", ".cascade-link", "file", ".cascade-full"}
	gone := []string{".cascade-7-n0", "odd \n*?.sock"}
	for _, name := range slices.Concat(kept, gone, []string{"never there"}) {
		add(t, dir, 7, at(name))
	}
	add(t, dir, 7, at("odd \n*?.sock")) // once more
	add(t, dir, 77, at("other.sock"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "job7-file.left"), nil, 0o600), os.Symlink("live.sock", filepath.Join(dir, "job7-relative.left"))); err != nil {
		t.Fatal(err)
	}
	t.Chdir(top)

	removed, err := RemoveJob(t.Context(), dir, 7)
	slices.Sort(removed)
	if want := []string{at(gone[0]), at(gone[1])}; !slices.Equal(removed, want) || !errors.Is(err, ErrKept) {
		t.Errorf("removed %q, %v; want %q", removed, err, want)
	}
	for _, name := range append(kept, "other.sock", "home/secret", "real/secret", ".cascade-open/secret") {
		if _, err := os.Lstat(at(name)); err != nil {
			t.Errorf("it did not stay: %v", err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	// The notes of what is kept, the other job's, and two that are none.
	if len(left) != len(kept)+3 || err != nil {
		t.Errorf("of the notes %q are left, %v", left, err)
	}
}

// TestAddRemove: a note that is removed is none, and a directory that others can write to has none.
func TestAddRemove(t *testing.T) {
	top := t.TempDir()
	dir, path := filepath.Join(top, "notes"), filepath.Join(top, "a.sock")
	socket(t, path, false)
	add(t, dir, 7, path)()
	if removed, err := RemoveJob(t.Context(), dir, 7); len(removed) > 0 || err != nil {
		t.Errorf("removed %q, %v", removed, err)
	}
	add(t, dir, 7, path)
	link := filepath.Join(top, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, unsafe := range []string{link, filepath.Join(top, "missing")} {
		if removed, err := RemoveJob(t.Context(), unsafe, 7); len(removed) > 0 || err != nil {
			t.Errorf("%s: removed %q, %v", unsafe, removed, err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if removed, err := RemoveJob(t.Context(), dir, 7); len(removed) > 0 || err != nil {
		t.Errorf("of a directory of everybody: removed %q, %v", removed, err)
	}
	if _, err := Add(dir, 8, path); err == nil {
		t.Error("a note goes where everybody can write")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}
