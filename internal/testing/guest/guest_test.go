package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// abandonVariable makes this program start a machine, print its folder and
// wait to be killed.
const abandonVariable = "CASCADE_GUEST_ABANDON"

func TestMain(m *testing.M) {
	if os.Getenv(abandonVariable) == "" {
		os.Exit(m.Run())
	}
	e, err := Find(context.Background())
	if err == nil {
		var guest *Machine
		if guest, err = e.NewMachine(context.Background()); err == nil {
			fmt.Println(guest.dir)
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

func equipment(t *testing.T) *Equipment {
	t.Helper()
	if os.Getenv("CASCADE_TEST_LUSTRE") == "" {
		t.Skip("make test-lustre runs this: it starts guests with a real Lustre")
	}
	e, err := Find(t.Context())
	if errors.Is(err, ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// left returns the processes that have a folder in their command line.
func left(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		p, err := os.ReadFile(path)
		if err == nil && bytes.Contains(p, []byte(dir)) { // a process that has ended has no file
			found = append(found, path+": "+string(bytes.ReplaceAll(p, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// wantNothing waits until neither folder nor process of a guest is left.
func wantNothing(t *testing.T, dir string) {
	t.Helper()
	var rest []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		_, err := os.Stat(dir)
		if rest = left(t, dir); errors.Is(err, os.ErrNotExist) && len(rest) == 0 {
			return
		}
	}
	t.Errorf("the guest in %s is not all gone: %q", dir, rest)
}

func wantRun(t *testing.T, m *Machine, command string, status int, output string) {
	t.Helper()
	r, err := m.Run(t.Context(), command)
	if err != nil || r.Status != status || strings.TrimSpace(r.Output) != output {
		t.Errorf("%s: status %d, output %q, %v; want %d, %q", command, r.Status, r.Output, err, status, output)
	}
}

// TestMachine runs commands, cuts the power under one, starts again on the same
// disks, and leaves nothing.
func TestMachine(t *testing.T) {
	m, err := equipment(t).NewMachine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(left(t, m.dir)) == 0 {
		t.Error("the search for processes does not find the guest's")
	}
	wantRun(t, m, "echo kept | dd of=/mnt/lustre/x conv=fsync 2>/dev/null; echo to stderr >&2; exit 7", 7, "to stderr")
	file := filepath.Join(t.TempDir(), "of the host")
	if err := os.WriteFile(file, []byte("seen"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantRun(t, m, "cat '"+Host(file)+"'", 0, "seen")
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if r, err := m.Run(short, "sleep 1000"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command that does not end: %+v, %v", r, err)
	}
	ended := make(chan Result, 1)
	go func() {
		r, err := m.Run(t.Context(), "touch /mnt/lustre/begun; sleep 1000")
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	wantRun(t, m, "while [ ! -e /mnt/lustre/begun ]; do usleep 10000; done", 0, "")
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Status != Died {
		t.Errorf("a command under a power cut: %+v", r)
	}
	if err := m.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRun(t, m, "cat /mnt/lustre/x", 0, "kept")
	if err := m.End(); err != nil {
		t.Error(err)
	}
	wantNothing(t, m.dir)
}

// TestNothingOutlivesItsOwner kills a process that runs a machine.
func TestNothingOutlivesItsOwner(t *testing.T) {
	equipment(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), abandonVariable+"=1")
	in, err := owner.StdinPipe() // it ends when this test does, whatever happens
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || !filepath.IsAbs(dir) || len(left(t, dir)) == 0 {
		t.Errorf("no machine was started: %q, %v", line, err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // killed
	wantNothing(t, dir)
}

func TestMissingEquipment(t *testing.T) {
	t.Setenv(SharedVariable, t.TempDir())
	if _, err := Find(t.Context()); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), SharedVariable) {
		t.Errorf("error %v", err)
	}
}
