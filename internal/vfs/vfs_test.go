package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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
			f := create(t, vfs.OS{}, filepath.Join(t.TempDir(), "f"))
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

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	fs := vfs.OS{}
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
