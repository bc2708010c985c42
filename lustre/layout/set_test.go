package layout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// unstriped are directories of file systems that know no stripes.
func unstriped(t *testing.T) map[string]string {
	dirs := map[string]string{"temporary": t.TempDir()}
	if shm, err := os.MkdirTemp("/dev/shm", "layout-test-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		dirs["tmpfs"] = shm
	}
	for name, dir := range dirs {
		if i, err := Detect(dir); err != nil || i.Lustre {
			t.Logf("%s is on Lustre or cannot be looked at (%v): left out", dir, err)
			delete(dirs, name)
		}
	}
	return dirs
}

func TestElsewhereNothingIsStriped(t *testing.T) {
	plain, pfl := Plain(4, 4<<20, "flash"), granted(t, "-E 64M -c 1 -E eof -c 4").Layout()
	for name, dir := range unstriped(t) {
		for what, asked := range map[string]Layout{"plain": plain, "composite": pfl, "nothing": {}} {
			t.Run(name+"/"+what, func(t *testing.T) {
				r, err := setDefault(dir, asked)
				if err != nil || r.Striped || !r.OK() {
					t.Errorf("directory: %+v, %v", r, err)
				}
				path := filepath.Join(dir, what)
				f, r, err := createFile(path, 0o600, asked)
				if err != nil || r.Striped || !r.OK() {
					t.Fatalf("file: %+v, %v", r, err)
				}
				defer f.Close()
				if _, err := f.WriteAt([]byte("x"), 5); err != nil {
					t.Errorf("write: %v", err)
				}
				flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
				if err != nil || flags&delayCreate != 0 {
					t.Errorf("flags %#x: %v", flags, err)
				}
				if _, err := Read(path); !errors.Is(err, ErrNotLustre) {
					t.Errorf("Read: %v", err)
				}
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != 6 {
					t.Errorf("%v, %v", info, err)
				}
			})
		}
	}
}

func TestHintsElsewhere(t *testing.T) {
	for name, dir := range unstriped(t) {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(dir, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for _, n := range []int64{0, 4096} {
				if err := advise(int(f.Fd()), adviceWillRead, 0, n); !errors.Is(err, ErrNoHints) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
			if (Adviser{}).WillRead(f.Name(), 0, 4096) {
				t.Error("somebody listened")
			}
			if !(Adviser{}).WillRead(f.Name()+"x", 0, 4096) {
				t.Error("a file that is gone says that nobody listens")
			}
		})
	}
}

func TestAdviceBytes(t *testing.T) {
	want := unhex(t, `
		e01cdf1a 01000000 0000000000000000 00000000 00000000 0000000000000000
		0100 0000 00000000 0010000000000000 0030000000000000 00000000 00000000`)
	if got := encodeAdvice(adviceWillRead, 4096, 8192); string(got) != string(want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if got := encodeAdvice(adviceWillRead, 0, 0); le.Uint64(got[adviceHead+16:]) != eofEnd {
		t.Errorf("to the end: %x", got)
	}
}

func TestCreateErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := createFile(path, 0o600, Plain(1, 0, "")); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that exists: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "kept" {
		t.Errorf("it holds %q: %v", got, err)
	}
	bad := filepath.Join(dir, "bad")
	if _, _, err := createFile(bad, 0o600, Plain(1, 1000, "")); !errors.Is(err, ErrOption) {
		t.Errorf("a layout that cannot be: %v", err)
	}
	if _, err := os.Lstat(bad); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
	if _, _, err := createFile(filepath.Join(dir, "no", "f"), 0o600, Layout{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := setDefault(path, Plain(1, 0, "")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("no directory: %v", err)
	}
	if _, err := setDefault(dir, Plain(-5, 0, "")); !errors.Is(err, ErrOption) {
		t.Errorf("a default that cannot be: %v", err)
	}
	if _, err := Detect(filepath.Join(dir, "no")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Detect: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "no")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read: %v", err)
	}
}

func TestClientVersion(t *testing.T) {
	for name, tc := range map[string]struct{ path, text, want string }{
		"sysfs":       {"sys/fs/lustre/version", "2.17.57_62_gc881f8e_dirty\n", "2.17.57_62_gc881f8e_dirty"},
		"before 2.13": {"proc/fs/lustre/version", "lustre: 2.10.8\nkernel: patchless_client\nbuild: 2.10.8\n", "2.10.8"},
		"none":        {"etc/passwd", "x", ""},
		"empty":       {"sys/fs/lustre/version", "\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, tc.path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := clientVersion(root); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestRefusedErrorsTellWhatToCheck(t *testing.T) {
	for errno, want := range map[error]string{
		unix.EINVAL: "pool", unix.EREMOTEIO: "inactive", unix.EEXIST: "already", unix.EACCES: "enable_setstripe_gid",
		unix.ENOSPC: "lfs df", unix.E2BIG: "fewer stripes",
	} {
		err := &RefusedError{"/s/f", Plain(4, 0, "flash"), errno}
		if !errors.Is(err, ErrRefused) || !errors.Is(err, errno) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "-c 4 -p flash") {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

func TestStriperElsewhereSaysNothing(t *testing.T) {
	for name, dir := range unstriped(t) {
		t.Run(name, func(t *testing.T) {
			s := NewStriper(Plain(4, 4<<20, ""), func(r Report) { t.Errorf("told %v", r) })
			s.Prepare(dir)
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := s.Describe(path); got != "" {
				t.Errorf("described as %q", got)
			}
			if last, ok := s.Last(); ok {
				t.Errorf("reported %v", last)
			}
		})
	}
}

func TestStriperTellsOnceForEachLayout(t *testing.T) {
	var told []Report
	s := NewStriper(Plain(2, 0, ""), func(r Report) { told = append(told, r) })
	for _, line := range []string{"-c 2 -S 4m", "-c 2 -S 4m", "-c 1 -S 4m", "-c 1 -S 4m", "-c 2 -S 4m"} {
		r := Report{Path: "f", Asked: Plain(2, 0, ""), Striped: true, Granted: granted(t, line)}
		r.compare()
		s.report(r, nil)
	}
	if last, ok := s.Last(); !ok || !last.OK() {
		t.Errorf("the last report is %v, %v", last, ok)
	}
	if len(told) != 3 || !told[0].OK() || told[1].OK() || !told[2].OK() {
		t.Errorf("told %v", told)
	}
	for range 2 {
		s.report(Report{Path: "f", Striped: true}, unix.EIO)
	}
	if last, _ := s.Last(); !errors.Is(last.Err, unix.EIO) {
		t.Errorf("the last report is %v", last)
	}
	if len(told) != 4 || !errors.Is(told[3].Err, unix.EIO) {
		t.Errorf("told %v", told)
	}
}

func TestPoolsOfTheMountedFileSystem(t *testing.T) {
	const mounts = `30 1 0:25 / /mnt/ost0 rw - lustre_tgt /dev/ubdc rw
35 1 1273:181606 / /mnt/lustre rw,relatime shared:1 - lustre 10.99.0.1@tcp:10.99.0.2@tcp:/scratch/users rw,flock
36 1 0:9 / /mnt/odd rw - lustre nothing rw
37 1 0:10
`
	for device, want := range map[string]string{"1273:181606": "scratch", "0:25": "", "0:9": "", "0:10": "", "9:9": ""} {
		if got := mountedName(mounts, device); got != want {
			t.Errorf("device %s is of %q, want %q", device, got, want)
		}
	}

	root, dir := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, known := poolMembers(dir, "flash", root); known {
		t.Error("a machine without Lustre knows pools")
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	write("proc/self/mountinfo", fmt.Sprintf("35 1 %d:%d / /s rw - lustre a@tcp:/scratch rw\n", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if _, known := poolMembers(dir, "flash", root); known {
		t.Error("a client that says nothing of pools knows them")
	}
	write("proc/fs/lustre/lov/other-clilov-1/pools/flash", "other-OST0000_UUID\n")
	write("proc/fs/lustre/lov/scratch-clilov-00f/pools/flash", "scratch-OST0001_UUID\nscratch-OST000a_UUID\n")
	if got, known := poolMembers(dir, "flash", root); !known || !slices.Equal(got, []int{1, 10}) {
		t.Errorf("members %v, %v", got, known)
	}
	if got, known := poolMembers(dir, "disk", root); !known || got != nil {
		t.Errorf("members of no pool: %v, %v", got, known)
	}

	for name, tc := range map[string]struct {
		line string
		osts [2]int
		want []Kind
	}{
		"as asked":     {"-p flash -c 2", [2]int{1, 10}, nil},
		"outside":      {"-p flash -c 2", [2]int{1, 2}, []Kind{Outside}},
		"no such pool": {"-p disk -c 2", [2]int{1, 2}, []Kind{NoPool}},
		"ignore":       {"-p ignore -c 2", [2]int{1, 2}, nil},
		"component":    {"-E eof -c 2 -p disk", [2]int{1, 2}, []Kind{NoPool}},
	} {
		t.Run(name, func(t *testing.T) {
			g := granted(t, tc.line)
			g.Parts[0].Objects = []Object{{OST: tc.osts[0]}, {OST: tc.osts[1]}}
			r := Report{Path: dir, Asked: g.Layout(), Granted: g}
			var kinds []Kind
			for _, d := range r.comparePools(root) {
				kinds = append(kinds, d.Kind)
			}
			if !slices.Equal(kinds, tc.want) {
				t.Errorf("got %v, want %v", kinds, tc.want)
			}
		})
	}
}
