package epilog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"cascadekv/tiers/memory"
	"cascadekv/tiers/shm"
)

// program of a test: it waits until its input ends.
const waitVariable = "CASCADE_EPILOG_WAIT"

func TestMain(m *testing.M) {
	if os.Getenv(waitVariable) != "" {
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// run starts this program by another name, with variables.
func run(t *testing.T, name string, env ...string) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	self, err := os.Executable()
	if err == nil {
		err = os.Link(self, path)
	}
	if errors.Is(err, syscall.EXDEV) {
		var text []byte
		if text, err = os.ReadFile(self); err == nil {
			err = os.WriteFile(path, text, 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(env, waitVariable+"=1")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until it is that program
		exe, err := os.Readlink("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/exe")
		environ, _ := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/environ")
		if err == nil && filepath.Base(exe) == name && bytes.Contains(environ, []byte(waitVariable)) {
			return cmd
		}
		if time.Now().After(end) {
			t.Fatal("the program does not start")
		}
	}
}

// TestClean kills the ranks of a job, by what they are and whose, and removes its arenas, of this user.
func TestClean(t *testing.T) {
	id := 1<<25 + os.Getpid() // of this test alone
	in, other := "SLURM_JOB_ID="+strconv.Itoa(id), "SLURM_JOB_ID="+strconv.Itoa(id+1)
	ours := []*exec.Cmd{run(t, "cascaded", in), run(t, "cascaded-mpich", "X=1", in, "SLURMD_NODENAME=n1", "SLURM_JOB_NODELIST=n[0-1]"),
		run(t, "cascaded", other, "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0="+strconv.Itoa(id+1), "SLURM_JOB_NODELIST_HET_GROUP_0=n0",
			"SLURM_JOB_ID_HET_GROUP_1="+strconv.Itoa(id), "SLURM_JOB_NODELIST_HET_GROUP_1=n1", "SLURMD_NODENAME=n1")}
	others := []*exec.Cmd{run(t, "cascaded"), run(t, "cascaded", other), run(t, "engine", in), run(t, "cascaded", "NOTE="+in)}
	dir := t.TempDir()
	open := func(name string, job int) *memory.Tier {
		tr, err := memory.Open(memory.Options{Name: "shm", Path: filepath.Join(dir, name), Bytes: memory.MinBytes, Job: uint64(job)})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	for name, job := range map[string]int{"a.arena": id, "b": id, "c.arena": id + 1, "d.arena": 0} {
		if err := open(name, job).Close(); err != nil {
			t.Fatal(err)
		}
	}
	live := open("live.arena", id)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() { // the first try is over by then, or the file was free from the start
		time.Sleep(300 * time.Millisecond)
		live.Close()
	}()
	defer cancel()
	r, err := Clean(ctx, Job{ID: id, UID: os.Geteuid(), Dirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range ours {
		if !slices.Contains(r.Killed, cmd.Process.Pid) {
			t.Errorf("%q of the job lives: %v", cmd.Path, r.Killed)
		}
	}
	if len(r.Killed) != len(ours) || len(r.Arenas) != 3 {
		t.Errorf("killed %v and removed %+v", r.Killed, r.Arenas)
	}
	for _, cmd := range others {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("%q: %v", cmd.Path, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "c.arena"), filepath.Join(dir, "d.arena")}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left %q, %v", left, err)
	}
}

// TestCleanRefuses: nobody but root acts for another user, and what a rank keeps in use stays.
func TestCleanRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := Clean(t.Context(), Job{ID: 1, UID: os.Geteuid() + 1}); !errors.Is(err, ErrUser) {
			t.Errorf("for another user: %v", err)
		}
	}
	id, dir := 1<<26+os.Getpid(), t.TempDir()
	tr, err := memory.Open(memory.Options{Name: "shm", Path: filepath.Join(dir, "a.arena"), Bytes: memory.MinBytes, Job: uint64(id)})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if r, err := Clean(ctx, Job{ID: id, UID: os.Geteuid(), Dirs: []string{dir}}); !errors.Is(err, shm.ErrLive) || len(r.Arenas) > 0 || !tr.FileLinked() {
		t.Errorf("of a rank that lives: %+v, %v", r, err)
	}
	if _, err := Clean(t.Context(), Job{ID: id, UID: os.Geteuid(), Dirs: []string{filepath.Join(dir, "none")}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no directory: %v", err)
	}
}
