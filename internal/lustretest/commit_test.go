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

// sequence is a way to make a file called x durable. Its first part comes
// before everything is committed once: else the fsync of one sequence would
// commit the rename of another.
type sequence struct {
	name  string
	kept  bool // a power cut right after it leaves the file with its bytes
	first func(dir string) (*os.File, error)
	then  func(dir string, f *os.File) error
}

// sequences are those of reference/lustre-real.md, and the two that a store
// uses (lustre/segment's golden trace of operations): the first ones. If one
// that keeps nothing kept a file some day, that would be no harm.
var sequences = []sequence{
	{"rename-fsync", true, nil, func(dir string, _ *os.File) error {
		f, err := renamed(dir, 0)
		return errors.Join(err, f.Sync())
	}},
	{"rename-fsync-write-fsync", true, nil, func(dir string, _ *os.File) error {
		f, err := renamed(dir, 0)
		err = errors.Join(err, f.Sync())
		_, more := f.WriteAt(commitBytes(), commitSize)
		return errors.Join(err, more, f.Sync())
	}},
	{"fsync", true, nil, func(dir string, _ *os.File) error {
		f, err := written(filepath.Join(dir, "x"), 0)
		return errors.Join(err, f.Sync())
	}},
	{"fsync-rename-fchmod-fsync", true, synced, func(dir string, f *os.File) error {
		return errors.Join(rename(dir), f.Chmod(0o640), f.Sync())
	}},
	{"fsync-rename-new-file-fsync", true, synced, func(dir string, _ *os.File) error {
		err := rename(dir)
		marker, made := os.Create(filepath.Join(dir, "marker"))
		return errors.Join(err, made, marker.Sync())
	}},
	{"no-fsync", false, nil, func(dir string, _ *os.File) error {
		f, err := written(filepath.Join(dir, "x"), 0)
		return errors.Join(err, f.Close())
	}},
	{"fsync-rename", false, synced, func(dir string, _ *os.File) error { return rename(dir) }},
	{"fsync-rename-fsync-directory", false, synced, func(dir string, _ *os.File) error {
		return errors.Join(rename(dir), syncPath(dir))
	}},
	{"fsync-rename-fsync-again", false, synced, func(dir string, f *os.File) error {
		return errors.Join(rename(dir), f.Sync())
	}},
	{"fsync-rename-fsync-by-another-descriptor", false, synced, func(dir string, _ *os.File) error {
		return errors.Join(rename(dir), syncPath(filepath.Join(dir, "x")))
	}},
	{"fsync-rename-syncfs", false, synced, func(dir string, f *os.File) error {
		return errors.Join(rename(dir), unix.Syncfs(int(f.Fd())))
	}},
	{"rename-O_SYNC-O_DIRECT", false, nil, func(dir string, _ *os.File) error {
		_, err := renamed(dir, syscall.O_SYNC|syscall.O_DIRECT)
		return err
	}},
	{"rename-fdatasync", false, nil, func(dir string, _ *os.File) error {
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

// written writes a file.
func written(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(commitBytes(), 0)
	return f, err
}

// rename gives a file its name.
func rename(dir string) error {
	return os.Rename(filepath.Join(dir, "x.tmp"), filepath.Join(dir, "x"))
}

// renamed writes a file and gives it its name.
func renamed(dir string, flags int) (*os.File, error) {
	f, err := written(filepath.Join(dir, "x.tmp"), flags)
	if err != nil {
		return nil, err
	}
	return f, rename(dir)
}

// synced begins what is right on other file systems: the name comes last.
func synced(dir string) (*os.File, error) {
	f, err := written(filepath.Join(dir, "x.tmp"), 0)
	if err != nil {
		return nil, err
	}
	return f, f.Sync()
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// runCommit does sequences, each in a folder of its own. Everything before their
// second parts is committed: else the servers' timers may do so in the middle.
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
	var chosen []sequence
	for _, name := range strings.Split(*names, ",") {
		i := slices.IndexFunc(sequences, func(s sequence) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("no sequence %q", name)
		}
		chosen = append(chosen, sequences[i])
	}
	files := make([]*os.File, len(chosen))
	for i, s := range chosen {
		err := os.Mkdir(filepath.Join(*dir, s.name), 0o700)
		if err == nil && s.first != nil {
			files[i], err = s.first(filepath.Join(*dir, s.name))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	syscall.Sync()
	syscall.Sync()
	for i, s := range chosen {
		if err := s.then(filepath.Join(*dir, s.name), files[i]); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// commitCuts are the sequences of each power cut: one that keeps its file by making a
// server commit keeps those of others too, and is alone. That all others are
// lost together shows it of each.
func commitCuts() (all [][]sequence) {
	var lost []sequence
	for _, s := range sequences {
		if s.kept {
			all = append(all, []sequence{s})
		} else {
			lost = append(lost, s)
		}
	}
	return append(all, lost)
}

// TestCommitRule cuts all power right after each sequence of
// reference/lustre-real.md: those that keep a file, among them what the store
// relies on, keep it with its bytes. The others show that they do not, so that
// the cut is one.
func TestCommitRule(t *testing.T) {
	t.Parallel()
	m := machine(t)
	want := filepath.Join(t.TempDir(), "bytes")
	p := commitBytes()
	if err := os.WriteFile(want, append(p[:len(p):len(p)], p...), 0o600); err != nil {
		t.Fatal(err)
	}
	n, kept := 0, map[string]bool{}
	for _, together := range commitCuts() {
		const tries = 3 // a server may commit by itself a moment before the cut
		for try := range tries {
			n++
			dir := fmt.Sprint("/mnt/lustre/commit", n)
			cutAfter(t, m, dir, together)
			var again []string
			for _, s := range together {
				kept[s.name] = s.outlives(t, m, dir, want)
				if !s.kept && kept[s.name] {
					again = append(again, s.name)
				}
			}
			if len(again) == 0 {
				break
			}
			if try == tries-1 {
				t.Logf("%s: kept by the last of %d cuts, which nothing relies on", again, tries)
			}
		}
	}
	summary(t, "commit_rule", kept)
}

// outlives reports whether a file is there after a cut, with its bytes, as a file
// in want has them, and fails the test when it must be and is not.
func (s sequence) outlives(t *testing.T, m *guest.Machine, dir, want string) bool {
	t.Helper()
	size := commitSize * (1 + strings.Count(s.name, "-write"))
	left := must(t, m.Run, fmt.Sprintf("cd %s/%s 2>/dev/null && ls -l && head -c %d %s | cmp - x && [ $(stat -c %%s x) = %[3]d ] && echo complete; true", dir, s.name, size, guest.Host(want)))
	complete := strings.HasSuffix(left, "complete\n")
	t.Logf("%s: there after the cut: %v", s.name, complete)
	if s.kept && !complete {
		t.Errorf("%s, which keeps a file, did not outlive a power cut: %s", s.name, left)
	}
	return complete
}

// cutAfter does sequences and cuts the power.
func cutAfter(t *testing.T, m *guest.Machine, dir string, sequences []sequence) {
	t.Helper()
	var names []string
	for _, s := range sequences {
		names = append(names, s.name)
	}
	must(t, m.Run, self("commit", "-dir", dir, "-sequences", strings.Join(names, ",")))
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
}
