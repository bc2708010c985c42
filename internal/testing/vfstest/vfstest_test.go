package vfstest

import (
	"errors"
	"path/filepath"
	"testing"

	"cascadekv/internal/vfs"
)

func create(t *testing.T, fs vfs.FS, path string) vfs.File {
	t.Helper()
	f, err := fs.Create(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestFault(t *testing.T) {
	dir := t.TempDir()
	fs := NewFault(vfs.OS{})
	fs.Add(Rule{Op: vfs.OpWrite, Path: "f", After: 1, Count: 1, Err: vfs.ErrNoSpace, Bytes: 7})
	fs.Add(Rule{Op: vfs.OpSync, Err: vfs.ErrIO})
	f := create(t, fs, filepath.Join(dir, "f"))
	if _, err := f.Pwrite([]byte("first"), 0); err != nil {
		t.Fatal(err)
	}
	n, err := f.Pwritev([][]byte{[]byte("abcd"), []byte("efgh"), []byte("ijkl")}, 5)
	if n != 7 || !errors.Is(err, vfs.ErrNoSpace) {
		t.Errorf("%d bytes, %v; want 7 and ENOSPC", n, err)
	}
	if size, _ := f.Size(); size != 12 {
		t.Errorf("size %d after a short write", size)
	}
	if _, err := f.Pwrite([]byte("x"), 0); err != nil {
		t.Errorf("write after the rule is spent: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, vfs.ErrIO) {
		t.Errorf("Sync: %v", err)
	}
	fs.Clear()
	if err := f.Sync(); err != nil {
		t.Errorf("Sync after Clear: %v", err)
	}
	fs.SetSpace(func() vfs.Space { return vfs.Space{Free: 3} })
	if s, err := fs.Statfs(dir); s.Free != 3 || err != nil {
		t.Errorf("space %+v, %v", s, err)
	}
	gate := make(chan struct{})
	fs.Add(Rule{Op: vfs.OpRead, Count: 1, Block: gate})
	done := make(chan error)
	go func() {
		_, err := f.Pread(make([]byte, 1), 0)
		done <- err
	}()
	<-fs.UntilHung(t.Context(), 1).Done()
	<-fs.UntilHung(t.Context(), 1).Done() // it hangs already
	two := fs.UntilHung(t.Context(), 2)
	if _, err := fs.Open(filepath.Join(dir, "f")); err != nil {
		t.Errorf("another operation while one hangs: %v", err)
	}
	select {
	case <-done:
		t.Error("the read did not hang")
	default:
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if two.Err() != nil {
		t.Error("two operations were said to hang")
	}
}

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	fs := NewTrace(vfs.OS{}, dir)
	f := create(t, fs, filepath.Join(dir, "f.tmp"))
	f.Pwritev([][]byte{make([]byte, 10), make([]byte, 20)}, 4096)
	f.Sync()
	fs.Rename(filepath.Join(dir, "f.tmp"), filepath.Join(dir, "f"))
	f.Pread(make([]byte, 5), 1)
	fs.Remove(filepath.Join(dir, "f"))
	want := "create f.tmp\nwrite f.tmp 4096+30\nsync f.tmp\nrename f.tmp -> f\nread f.tmp 1+5\nremove f"
	if got := fs.Take(); got != want {
		t.Errorf("trace\n%s\nwant\n%s", got, want)
	}
	if got := fs.Take(); got != "" {
		t.Errorf("trace kept %q", got)
	}
}

// TestBounded: what fits is written, also of a write that does not, and a removed
// file gives its room back, under whatever name.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	b := NewBounded(vfs.OS{}, 1000)
	free := func(want int64) {
		t.Helper()
		if s, err := b.Statfs(dir); err != nil || s.Free != want || s.Total != 1000 || b.Used() != 1000-want {
			t.Errorf("%+v, %v, %d used; want %d free", s, err, b.Used(), want)
		}
	}
	f, err := b.Create(filepath.Join(dir, "a"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Pwrite(make([]byte, 600), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Pwrite(make([]byte, 300), 500); err != nil {
		t.Fatal(err)
	}
	free(200)
	n, err := f.Pwrite(make([]byte, 500), 700)
	if size, _ := f.Size(); n != 300 || !errors.Is(err, vfs.ErrNoSpace) || size != 1000 {
		t.Errorf("%d bytes written, %v; the file has %d", n, err, size)
	}
	free(0)
	if err := b.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	free(1000)
}
