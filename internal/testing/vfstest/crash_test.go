package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"cascadekv/internal/vfs"
)

// pattern is n bytes, none zero, that differ from page to page.
func pattern(n int, salt byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i/crashPage)*7 + salt | 1
	}
	return p
}

func write(t *testing.T, f vfs.File, p []byte, off int64) {
	t.Helper()
	if n, err := f.Pwrite(p, off); n != len(p) || err != nil {
		t.Fatalf("Pwrite: %d bytes, %v", n, err)
	}
}

func slurp(t *testing.T, fs vfs.FS, path string) ([]byte, error) {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if _, err := f.Pread(p, 0); err != nil {
		t.Fatal(err)
	}
	return p, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrashRules tries each sequence of operations that was measured on a real
// Lustre whose machine lost its power. kept: the file is there under its last name with
// all its bytes, whatever the seed. Otherwise some seeds must lose it.
func TestCrashRules(t *testing.T) {
	data := pattern(3*crashPage+100, 1)
	for name, c := range map[string]struct {
		do   func(t *testing.T, fs *Crash, f *crashFile)
		kept bool
	}{
		"write, fsync": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			must(t, f.Sync())
		}, true},
		"write, close, no fsync": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			must(t, f.Close())
		}, false},
		"write, fsync, rename": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, f.Sync())
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
		}, false},
		"write, fsync, rename, fsync again": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, f.Sync())
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			must(t, f.Sync())
		}, false},
		"write, fsync, rename, chmod, fsync": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, f.Sync())
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			f.chmod()
			must(t, f.Sync())
		}, true},
		"write, fsync, rename, another new file fsynced": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, f.Sync())
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			must(t, create(t, fs, "/d/marker").Sync())
		}, true},
		"write, fdatasync": {func(t *testing.T, fs *Crash, f *crashFile) {
			must(t, fs.Rename("/d/f.tmp", "/d/f"))
			must(t, f.sync(false))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			fs := NewCrash()
			must(t, fs.Mkdir("/d", 0o700))
			f := create(t, fs, "/d/f.tmp").(*crashFile)
			write(t, f, data, 0)
			c.do(t, fs, f)
			lost := 0
			for seed := range uint64(100) {
				if got, err := slurp(t, fs.After(CutPower, seed), "/d/f"); err != nil || !bytes.Equal(got, data) {
					lost++
				}
				if got, err := slurp(t, fs.After(CutProcess, seed), "/d/f"); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("the end of a process lost bytes: %d, %v", len(got), err)
				}
				if _, err := slurp(t, fs.After(CutNode, seed), "/d/f"); err != nil {
					t.Fatalf("the end of a client lost a name: %v", err)
				}
				if got, err := slurp(t, fs.After(CutProcess, seed).After(CutPower, seed), "/d/f"); c.kept && (err != nil || !bytes.Equal(got, data)) {
					t.Fatalf("the end of a process made a durable file less so: %v", err)
				}
			}
			if kept := lost == 0; kept != c.kept || lost == 100 {
				t.Errorf("lost with %d of 100 seeds, want it kept: %v", lost, c.kept)
			}
		})
	}
}

// TestCrashData: pages that were synced stay; the others are lost one by one,
// and among the ways to lose them are all that were seen.
func TestCrashData(t *testing.T) {
	fs := NewCrash()
	f := create(t, fs, "/f")
	old, young := pattern(2*crashPage, 1), pattern(4*crashPage+700, 2)
	write(t, f, old, 0)
	must(t, f.Sync())
	write(t, f, young, crashPage)
	seen := map[string]int{}
	for seed := range uint64(500) {
		got, err := slurp(t, fs.After(CutPower, seed), "/f")
		must(t, err)
		if len(got) < len(old) || len(got) > crashPage+len(young) || !bytes.Equal(got[:crashPage], old[:crashPage]) {
			t.Fatalf("seed %d: %d bytes, or the synced page is damaged", seed, len(got))
		}
		if again, err := slurp(t, fs.After(CutPower, seed), "/f"); err != nil || !bytes.Equal(got, again) {
			t.Fatalf("seed %d is no seed: %v", seed, err)
		}
		for off := crashPage; off < len(got); off += crashPage {
			page := got[off:min(len(got), off+crashPage)]
			switch {
			case bytes.Equal(page, young[off-crashPage:][:len(page)]):
				seen["new"]++
			case off < len(old) && bytes.Equal(page, old[off:][:len(page)]):
				seen["old"]++
			case bytes.Count(page, []byte{0}) == len(page):
				seen["zero"]++
			default:
				seen["torn"]++
			}
		}
		switch size := len(got); {
		case size == len(old):
			seen["short"]++
		case size == crashPage+len(young):
			seen["whole"]++
		case size%crashPage != 0:
			seen["cut within a page"]++
		default:
			seen["cut at a page"]++
		}
	}
	for _, way := range []string{"new", "old", "zero", "torn", "short", "whole", "cut within a page", "cut at a page"} {
		if seen[way] == 0 {
			t.Errorf("%q never happened: %v", way, seen)
		}
	}
}

// TestCrashJournal: names are lost from the end, never from the middle.
func TestCrashJournal(t *testing.T) {
	fs := NewCrash()
	must(t, create(t, fs, "/kept").Sync())
	must(t, fs.Remove("/kept"))
	for i := range 6 {
		create(t, fs, fmt.Sprintf("/%d", i))
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		seen[strings.Join(fs.After(CutPower, seed).Files(), " ")] = true
	}
	want := []string{"", "/0", "/0 /1", "/0 /1 /2", "/0 /1 /2 /3", "/0 /1 /2 /3 /4", "/0 /1 /2 /3 /4 /5", "/kept"}
	for _, w := range want {
		if !seen[w] {
			t.Errorf("%q was never left", w)
		}
		delete(seen, w)
	}
	if len(seen) > 0 {
		t.Errorf("no prefix of the journal leads to %v", seen)
	}
}

// TestCrashEvict: the pages are gone, one Sync says so, the next does not.
func TestCrashEvict(t *testing.T) {
	damaged := 0
	for seed := range uint64(40) {
		fs := NewCrash()
		f, clean := create(t, fs, "/f"), create(t, fs, "/clean")
		first, lost := pattern(crashPage, 1), pattern(crashPage, 2)
		write(t, f, first, 0)
		must(t, f.Sync())
		must(t, clean.Sync())
		write(t, f, lost, crashPage)
		fs.Evict(seed)
		must(t, clean.Sync())
		if err := f.Sync(); !errors.Is(err, vfs.ErrIO) {
			t.Fatalf("Sync after an eviction: %v", err)
		}
		must(t, f.Sync())
		got, err := slurp(t, fs, "/f")
		must(t, err)
		if !bytes.Equal(got[:crashPage], first) {
			t.Fatal("an eviction took what was synced")
		}
		if !bytes.Equal(got[crashPage:], lost) {
			damaged++
		}
		write(t, f, lost, crashPage)
		must(t, f.Sync())
		if got, err := slurp(t, fs.After(CutPower, seed), "/f"); err != nil || !bytes.Equal(got[crashPage:], lost) {
			t.Fatalf("what was written after the eviction: %v", err)
		}
	}
	if damaged == 0 {
		t.Error("no eviction lost anything")
	}
}

// TestCrashIsAFileSystem: the operations do what OS does.
func TestCrashIsAFileSystem(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) (vfs.FS, string){
		"os":    func(t *testing.T) (vfs.FS, string) { return vfs.OS{}, t.TempDir() },
		"crash": func(t *testing.T) (vfs.FS, string) { fs := NewCrash(); return fs, "/" },
	} {
		t.Run(name, func(t *testing.T) {
			fs, root := open(t)
			at := func(name string) string { return root + "/" + name }
			must(t, fs.Mkdir(at("d"), 0o700))
			f := create(t, fs, at("d/a"))
			write(t, f, pattern(10000, 3), 5)
			if n, err := f.Pwritev([][]byte{[]byte("abc"), nil, []byte("defg")}, 4094); n != 7 || err != nil {
				t.Errorf("Pwritev: %d, %v", n, err)
			}
			want := append(make([]byte, 5), pattern(10000, 3)...)
			copy(want[4094:], "abcdefg")
			if got, err := slurp(t, fs, at("d/a")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("wrong bytes, %v", err)
			}
			p := make([]byte, 10)
			if n, err := f.Pread(p, 10000); n != 5 || !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read across the end: %d bytes, %v", n, err)
			}
			r, err := fs.Open(at("d/a"))
			must(t, err)
			if _, err := r.Pwrite([]byte("x"), 1); err == nil {
				t.Error("a file opened for reading was written to")
			}
			must(t, r.Close())
			w, err := fs.Reopen(at("d/a"))
			must(t, err)
			write(t, w, []byte("xyz"), 7)
			must(t, w.Close())
			copy(want[7:], "xyz")
			if got, err := slurp(t, fs, at("d/a")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("after Reopen: wrong bytes, %v", err)
			}
			create(t, fs, at("d/b"))
			must(t, fs.Rename(at("d/a"), at("d/b")))
			names, err := fs.ReadDir(at("d"))
			if err != nil || !slices.Equal(names, []string{"b"}) {
				t.Errorf("names %v, %v", names, err)
			}
			must(t, fs.Remove(at("d/b")))
			if _, err := f.Pread(p, 0); err != nil {
				t.Errorf("read of a removed file that is open: %v", err)
			}
			_, absent := fs.Open(at("d/b"))
			_, absent2 := fs.Reopen(at("d/b"))
			_, orphan := fs.Create(at("no/file"), 0o600)
			_, noDir := fs.ReadDir(at("no"))
			create(t, fs, at("c"))
			_, twice := fs.Create(at("c"), 0o600)
			for what, c := range map[string]struct{ err, want error }{
				"open absent":     {absent, os.ErrNotExist},
				"reopen absent":   {absent2, os.ErrNotExist},
				"create orphan":   {orphan, os.ErrNotExist},
				"create twice":    {twice, os.ErrExist},
				"mkdir twice":     {fs.Mkdir(at("d"), 0o700), os.ErrExist},
				"mkdir orphan":    {fs.Mkdir(at("no/d"), 0o700), os.ErrNotExist},
				"remove absent":   {fs.Remove(at("x")), os.ErrNotExist},
				"rename absent":   {fs.Rename(at("x"), at("y")), os.ErrNotExist},
				"list an absence": {noDir, os.ErrNotExist},
			} {
				if !errors.Is(c.err, c.want) {
					t.Errorf("%s: %v", what, c.err)
				}
			}
			if fs.Remove(at("d")) == nil {
				t.Error("Remove removed a directory")
			}
			create(t, fs, at("d/c"))
			if fs.Rmdir(at("d")) == nil || fs.Rmdir(at("c")) == nil {
				t.Error("Rmdir removed a directory with a file in it, or a file")
			}
			must(t, fs.Remove(at("d/c")))
			must(t, fs.Rmdir(at("d")))
			if err := fs.Rmdir(at("d")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("rmdir absent: %v", err)
			}
			must(t, f.Close())
			if f.Close() == nil {
				t.Error("second Close said nothing")
			}
		})
	}
}

// TestCrashWatch: the watcher sees each operation before it is done.
func TestCrashWatch(t *testing.T) {
	crash := NewCrash()
	var seen []string
	fs := crash.Watch(func(c vfs.Call) { seen = append(seen, fmt.Sprint(c.Op, " ", c.Path, " ", len(crash.Files()))) })
	f, err := fs.Create("/a", 0o600)
	must(t, err)
	must(t, fs.Rename("/a", "/b"))
	must(t, f.Close())
	want := []string{"create /a 0", "rename /a 1", "close /a 1"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %v, want %v", seen, want)
	}
	if n := crash.Handles(); n != 0 {
		t.Errorf("%d files open", n)
	}
}

func TestCrashFlip(t *testing.T) {
	fs := NewCrash()
	f := create(t, fs, "/f")
	write(t, f, pattern(5000, 1), 0)
	must(t, f.Sync())
	must(t, fs.Flip("/f", 4100, 0x10))
	want := pattern(5000, 1)
	want[4100] ^= 0x10
	if got, err := slurp(t, fs.After(CutPower, 1), "/f"); err != nil || !bytes.Equal(got, want) {
		t.Error("wrong bytes")
	}
	if got, err := slurp(t, fs, "/f"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("wrong bytes, %v", err)
	}
	if fs.Flip("/f", 5000, 1) == nil || fs.Flip("/g", 0, 1) == nil {
		t.Error("Flip of what is not there said nothing")
	}
}
