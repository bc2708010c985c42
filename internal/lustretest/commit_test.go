package lustretest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// runCommit does sequences, each in a folder of its own. Everything before them
// is committed first: else the servers' timers may do so in the middle.
func runCommit(args []string) error {
	f := flag.NewFlagSet("commit", flag.ContinueOnError)
	dir := f.String("dir", "", "a folder that is not there yet")
	names := f.String("sequences", "", "which, with commas")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := os.Mkdir(*dir, 0o700); err != nil {
		return err
	}
	for _, name := range strings.Split(*names, ",") {
		if err := os.Mkdir(filepath.Join(*dir, name), 0o700); err != nil {
			return err
		}
	}
	syscall.Sync()
	syscall.Sync()
	for _, s := range sequences {
		if slices.Contains(strings.Split(*names, ","), s.name) {
			if err := s.do(filepath.Join(*dir, s.name)); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// TestCommitRule cuts all power right after each sequence: what the store relies
// on keeps the file and its bytes. What it must not rely on shows that it does
// not, so that the cut is one; two that ask the metadata server for nothing can
// share one.
func TestCommitRule(t *testing.T) {
	t.Parallel()
	m := machine(t)
	want := filepath.Join(t.TempDir(), "bytes")
	p := commitBytes()
	if err := os.WriteFile(want, append(p[:len(p):len(p)], p...), 0o600); err != nil {
		t.Fatal(err)
	}
	n, kept := 0, map[string]bool{}
	for i := 0; i < len(sequences); i++ {
		together := []string{sequences[i].name}
		if i == len(sequences)-2 {
			together = append(together, sequences[i+1].name)
			i++
		}
		const tries = 3 // a server may commit by itself a moment before the cut
		for try := range tries {
			n++
			dir := fmt.Sprint("/mnt/lustre/commit", n)
			cutAfter(t, m, dir, strings.Join(together, ","))
			again := false
			for _, s := range sequences {
				if !slices.Contains(together, s.name) {
					continue
				}
				size := commitSize * (1 + strings.Count(s.name, "-write"))
				left := must(t, m.Run, fmt.Sprintf("cd %s/%s 2>/dev/null && ls -l && head -c %d %s | cmp - x && [ $(stat -c %%s x) = %[3]d ] && echo complete; true", dir, s.name, size, guest.Host(want)))
				kept[s.name] = strings.HasSuffix(left, "complete\n")
				t.Logf("%s: there after the cut: %v", s.name, kept[s.name])
				if s.kept && !kept[s.name] {
					t.Errorf("%s, on which the store relies, did not outlive a power cut: %s", s.name, left)
				}
				again = again || !s.kept && kept[s.name]
			}
			if !again {
				break
			}
			if try == tries-1 {
				t.Logf("%s: kept %d times of %d, which nothing relies on", together, tries, tries)
			}
		}
	}
	summary(t, "commit_rule", kept)
}

// cutAfter does sequences and cuts the power.
func cutAfter(t *testing.T, m *guest.Machine, dir, sequences string) {
	t.Helper()
	must(t, m.Run, self("commit", "-dir", dir, "-sequences", sequences))
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}
