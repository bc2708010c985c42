package lustretest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cascadekv/internal/guest"
)

// sequences are ways to make a file durable that has first another name, each
// with whether a power cut right after it leaves the file. A store relies on
// those that do alone (lustre/segment's golden trace of operations); if one of
// the others kept a file some day, that would be no harm.
var sequences = []struct {
	name string
	kept bool
	do   func(dir string) error
}{
	{"rename-fsync", true, func(dir string) error {
		f, err := renamed(dir, 0)
		return errors.Join(err, f.Sync())
	}},
	{"rename-fsync-write-fsync", true, func(dir string) error {
		f, err := renamed(dir, 0)
		err = errors.Join(err, f.Sync())
		_, more := f.WriteAt(commitBytes(), commitSize)
		return errors.Join(err, more, f.Sync())
	}},
	{"fsync-rename-fsync-directory", false, func(dir string) error {
		return errors.Join(fsyncThenRename(dir), syncPath(dir))
	}},
	{"fsync-rename-fsync-again", false, func(dir string) error {
		return errors.Join(fsyncThenRename(dir), syncPath(filepath.Join(dir, "x")))
	}},
	{"rename-O_SYNC-O_DIRECT", false, func(dir string) error {
		_, err := renamed(dir, syscall.O_SYNC|syscall.O_DIRECT)
		return err
	}},
	{"rename-fdatasync", false, func(dir string) error {
		f, err := renamed(dir, 0)
		return errors.Join(err, unix.Fdatasync(int(f.Fd())))
	}},
}

// commitSize is a multiple of pages, and of more than one stripe's first write.
const commitSize = 64 << 10

// commitBytes are aligned as O_DIRECT likes it.
func commitBytes() []byte {
	p, err := unix.Mmap(-1, 0, commitSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(err)
	}
	for i := range p {
		p[i] = byte(i>>8) + 1
	}
	return p
}

// renamed writes a file and gives it its name.
func renamed(dir string, flags int) (*os.File, error) {
	temporary := filepath.Join(dir, "x.tmp")
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(commitBytes(), 0)
	return f, errors.Join(err, os.Rename(temporary, filepath.Join(dir, "x")))
}

// fsyncThenRename is what is right on other file systems.
func fsyncThenRename(dir string) error {
	temporary := filepath.Join(dir, "x.tmp")
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(commitBytes(), 0)
	return errors.Join(err, f.Sync(), os.Rename(temporary, filepath.Join(dir, "x")))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// runCommit does one sequence. Everything before it is committed first: else the
// servers' timers may do so in the middle.
func runCommit(args []string) error {
	f := flag.NewFlagSet("commit", flag.ContinueOnError)
	dir := f.String("dir", "", "a folder that is not there yet")
	name := f.String("sequence", "", "which")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := os.Mkdir(*dir, 0o700); err != nil {
		return err
	}
	syscall.Sync()
	syscall.Sync()
	for _, s := range sequences {
		if s.name == *name {
			return s.do(*dir)
		}
	}
	return fmt.Errorf("no sequence %q", *name)
}

// TestCommitRule cuts all power right after each sequence: what the store relies
// on keeps the file and its bytes, and what it must not rely on shows that it
// does not, so that the cut is one.
func TestCommitRule(t *testing.T) {
	t.Parallel()
	m := machine(t)
	n := 0
	for _, s := range sequences {
		t.Run(s.name, func(t *testing.T) {
			const tries = 3 // a server may commit by itself a moment before the cut
			for range tries {
				n++
				found := afterCut(t, m, s.name, fmt.Sprint("/mnt/lustre/commit", n))
				t.Logf("after the cut: %q", found)
				complete := strings.HasPrefix(found, "x "+map[bool]string{true: fmt.Sprint(2 * commitSize), false: fmt.Sprint(commitSize)}[strings.Count(s.name, "write") > 0])
				if s.kept && !complete {
					t.Fatalf("lost by a power cut: %q is left", found)
				}
				if s.kept || !complete {
					return
				}
			}
			t.Logf("kept %d times of %d, which nothing relies on", tries, tries)
		})
	}
}

// afterCut does a sequence, cuts the power, and tells what is in its folder.
func afterCut(t *testing.T, m *guest.Machine, sequence, dir string) string {
	t.Helper()
	must(t, m.Run, self("commit", "-dir", dir, "-sequence", sequence))
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := must(t, m.Run, "cd "+dir+" 2>/dev/null && for f in *; do [ -e $f ] && stat -c '%n %s' $f; done; true")
	return strings.Join(strings.Fields(out), " ")
}
