package vfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func create(t *testing.T, fs FS, path string) File {
	t.Helper()
	f, err := fs.Create(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// pieces cuts p into buffers of n bytes, with empty ones between.
func pieces(p []byte, n int) [][]byte {
	var out [][]byte
	for len(p) > 0 {
		k := min(n, len(p))
		out = append(out, p[:k], nil)
		p = p[k:]
	}
	return out
}

func TestPwritev(t *testing.T) {
	for name, c := range map[string]struct{ size, piece int }{
		"nothing":            {0, 1},
		"one":                {5000, 5000},
		"few":                {5000, 100},
		"more than one call": {5000, 1}, // 10000 buffers, the kernel takes 1024
	} {
		t.Run(name, func(t *testing.T) {
			f := create(t, OS{}, filepath.Join(t.TempDir(), "f"))
			p := make([]byte, c.size)
			for i := range p {
				p[i] = byte(i*7 + i>>8)
			}
			bufs := pieces(p, c.piece)
			n, err := f.Pwritev(bufs, 300)
			if err != nil || n != int64(c.size) {
				t.Fatalf("%d bytes, %v", n, err)
			}
			got := make([]byte, c.size)
			if _, err := f.Pread(got, 300); err != nil || !bytes.Equal(got, p) {
				t.Errorf("wrong bytes, error %v", err)
			}
			if !bytes.Equal(bytes.Join(bufs, nil), p) {
				t.Error("Pwritev changed the caller's buffers")
			}
			if _, err := f.Pread(make([]byte, 1), 300+int64(c.size)); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read behind the end: %v", err)
			}
			if size, err := f.Size(); err != nil || c.size > 0 && size != int64(300+c.size) {
				t.Errorf("size %d, %v", size, err)
			}
		})
	}
}

func TestAdvance(t *testing.T) {
	for n := range 11 {
		bufs := [][]byte{[]byte("abc"), nil, []byte("defg"), []byte("hij")}
		if got := string(bytes.Join(advance(bufs, n), nil)); got != "abcdefghij"[n:] {
			t.Errorf("advance by %d: %q", n, got)
		}
	}
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	fs := OS{}
	at := func(name string) string { return filepath.Join(dir, name) }
	f := create(t, fs, at("b"))
	if n, err := f.Pwrite([]byte("hello"), 0); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
	if err := os.Symlink(at("b"), at("link")); err != nil {
		t.Fatal(err)
	}
	_, existsErr := fs.Create(at("b"), 0o600)
	_, linkErr := fs.Create(at("link"), 0o600)
	_, absentErr := fs.Open(at("x"))
	for what, c := range map[string]struct{ err, want error }{
		"create twice":        {existsErr, os.ErrExist},
		"create through link": {linkErr, os.ErrExist},
		"open absent":         {absentErr, os.ErrNotExist},
		"mkdir twice":         {fs.Mkdir(dir, 0o700), os.ErrExist},
		"remove absent":       {fs.Remove(at("x")), os.ErrNotExist},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	if _, err := fs.Open(at("link")); err == nil {
		t.Error("Open followed a symbolic link")
	}
	if err := fs.Rename(at("b"), at("a")); err != nil {
		t.Fatal(err)
	}
	if names, err := fs.ReadDir(dir); err != nil || strings.Join(names, " ") != "a link" {
		t.Errorf("names %v, %v", names, err)
	}
	if s, err := fs.Statfs(dir); err != nil || s.Total <= 0 || s.Free > s.Total {
		t.Errorf("space %+v, %v", s, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err == nil {
		t.Error("second Close said nothing")
	}
}

func TestFault(t *testing.T) {
	dir := t.TempDir()
	fs := NewFault(OS{})
	fs.Add(Rule{Op: OpWrite, Path: "f", After: 1, Count: 1, Err: ErrNoSpace, Bytes: 7})
	fs.Add(Rule{Op: OpSync, Err: ErrIO})
	f := create(t, fs, filepath.Join(dir, "f"))
	if _, err := f.Pwrite([]byte("first"), 0); err != nil {
		t.Fatal(err)
	}
	n, err := f.Pwritev([][]byte{[]byte("abcd"), []byte("efgh"), []byte("ijkl")}, 5)
	if n != 7 || !errors.Is(err, ErrNoSpace) {
		t.Errorf("%d bytes, %v; want 7 and ENOSPC", n, err)
	}
	if size, _ := f.Size(); size != 12 {
		t.Errorf("size %d after a short write", size)
	}
	if _, err := f.Pwrite([]byte("x"), 0); err != nil {
		t.Errorf("write after the rule is spent: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, ErrIO) {
		t.Errorf("Sync: %v", err)
	}
	fs.Clear()
	if err := f.Sync(); err != nil {
		t.Errorf("Sync after Clear: %v", err)
	}
	fs.SetSpace(func() Space { return Space{Free: 3} })
	if s, err := fs.Statfs(dir); s.Free != 3 || err != nil {
		t.Errorf("space %+v, %v", s, err)
	}
	gate := make(chan struct{})
	fs.Add(Rule{Op: OpRead, Count: 1, Block: gate})
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
	fs := NewTrace(OS{}, dir)
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
	b := NewBounded(OS{}, 1000)
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
	if size, _ := f.Size(); n != 300 || !errors.Is(err, ErrNoSpace) || size != 1000 {
		t.Errorf("%d bytes written, %v; the file has %d", n, err, size)
	}
	free(0)
	if err := b.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	free(1000)
}
