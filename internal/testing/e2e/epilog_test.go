package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cascadekv/internal/testing/testneed"
	"cascadekv/slurm/notes"
)

// epilogScript is configs/slurm/epilog.sh with the program under test, in a directory.
func epilogScript(t *testing.T, dir, cascade string) string {
	t.Helper()
	text, err := os.ReadFile("../../../configs/slurm/epilog.sh")
	if err != nil {
		t.Fatal(err)
	}
	const line = "cascade=/usr/bin/cascade\n"
	if strings.Count(string(text), line) != 1 {
		t.Fatalf("epilog.sh has no line %q", line)
	}
	script := filepath.Join(dir, "epilog.sh")
	if err := os.WriteFile(script, []byte(strings.Replace(string(text), line, "cascade="+cascade+"\n", 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// jobNode is a node on which several users have ranks.
type jobNode struct {
	dir, cascaded string            // that all users can see
	prefix        string            // of what the test has in /dev/shm
	sockets       map[string]string // of ranks, by the names of their arenas
}

func newJobNode(t *testing.T) jobNode {
	t.Helper()
	testneed.That(t, os.Geteuid() == 0, "the right to act as another user", "run this test as root")
	dir := newPlace(t, "").dir
	n := jobNode{dir: dir, cascaded: filepath.Join(dir, "cascaded"), prefix: "/dev/shm/" + filepath.Base(dir), sockets: map[string]string{}}
	program, err := os.ReadFile(program("cascaded"))
	if err == nil {
		err = os.WriteFile(n.cascaded, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, _ := filepath.Glob(n.prefix + "*")
		for _, path := range left {
			os.Remove(path)
		}
		noted, _ := filepath.Glob("/tmp/cascade-*/job*.left")
		for _, name := range noted { // of ranks that the test killed
			if path, err := os.Readlink(name); err == nil && strings.HasPrefix(path, dir) {
				os.Remove(name)
			}
		}
	})
	return n
}

// rank starts a rank of a user, in a job if there is one, and returns it when it serves.
func (n jobNode) rank(t *testing.T, uid, job int, name string) *exec.Cmd {
	t.Helper()
	home, err := os.MkdirTemp(n.dir, "")
	if err == nil {
		err = os.Chown(home, uid, uid)
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(home, "rank.sock")
	n.sockets[name] = socket
	cmd := exec.Command(n.cascaded, "--socket", socket, "--shm-path", n.prefix+name, "--shm-bytes", "8MiB")
	cmd.Dir = "/"
	cmd.Env = launcherEnv([]string{"HOME=" + home})
	if job > 0 {
		cmd.Env = append(cmd.Env, "SLURM_JOB_ID="+strconv.Itoa(job), "SLURM_JOB_NODELIST=n0", "SLURMD_NODENAME=n0")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it may have been waited for
	})
	until(t, "rank "+name, func() bool { _, err := os.Stat(socket); return err == nil })
	return cmd
}

// killed leaves the arena of a rank that was killed.
func (n jobNode) killed(t *testing.T, uid, job int, name string) {
	t.Helper()
	cmd := n.rank(t, uid, job, name)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

// note notes, as a user's job does, a path that it has; the note goes with the test.
func note(t *testing.T, uid, job int, path string) {
	t.Helper()
	dir := notes.Dir(uid)
	name := filepath.Join(dir, fmt.Sprintf("job%d-%x.left", job, path))
	if err := os.Mkdir(dir, 0o700); err == nil {
		err = os.Chown(dir, uid, uid)
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(path, name), os.Lchown(name, uid, uid)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(name) })
}

// noteds makes what a launch of each user would leave, and notes for the job's user that lie. It returns the paths that
// are to go and those that are to stay.
func (n jobNode) noteds(t *testing.T, user, other, job int) (leave, stay []string) {
	t.Helper()
	dirs := map[int]string{}
	for _, uid := range []int{user, other} {
		top := filepath.Join(n.dir, fmt.Sprintf("top %d", uid))
		dirs[uid] = filepath.Join(top, fmt.Sprintf(".cascade-%d-n0", job))
		err := errors.Join(os.Mkdir(top, 0o777), os.Chown(top, uid, uid), os.Chmod(top, 0o777), os.Mkdir(dirs[uid], 0o700), os.WriteFile(filepath.Join(dirs[uid], "secret"), nil, 0o600),
			os.Lchown(filepath.Join(dirs[uid], "secret"), uid, uid), os.Lchown(dirs[uid], uid, uid))
		if err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(n.dir, ".cascade-link")
	if err := os.Symlink(dirs[other], link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dirs[user], dirs[other], link, n.dir, "/etc/passwd", n.sockets["-theirs.arena"], n.sockets["-live.arena"]} {
		note(t, user, job, path)
	}
	note(t, user, job+1, n.sockets["-killed0.arena"])
	return []string{dirs[user], n.sockets["-live.arena"], n.sockets["-killed.arena"], n.sockets["-odd \n*?.name"]},
		[]string{filepath.Join(dirs[other], "secret"), link, n.dir, "/etc/passwd", n.sockets["-theirs.arena"], n.sockets["-killed0.arena"], n.sockets["-job.arena"]}
}

// there lists what is there of the test, by name.
func (n jobNode) there(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutPrefix("/dev/shm/"+e.Name(), n.prefix); ok {
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	return strings.Join(names, " ")
}

func (n jobNode) epilog(t *testing.T, script string, env ...string) {
	t.Helper()
	cmd := exec.Command(script)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("the epilog with %q: %v, %q", env, err, out)
	}
}

// TestEpilog: the epilog of a job removes that job's ranks and arenas, and nothing else, whatever others have put
// beside them. Its status is 0 whatever it is given.
func TestEpilog(t *testing.T) {
	const user, other = 65534, 65533
	job := 1<<22 + os.Getpid() // of this test alone
	n := newJobNode(t)
	script := epilogScript(t, n.dir, program("cascade"))

	ours := n.rank(t, user, job, "-live.arena")
	n.killed(t, user, job, "-killed.arena")
	n.killed(t, user, job, "-odd \n*?.name")
	stays := map[string]*exec.Cmd{
		"outside Slurm":        n.rank(t, user, 0, "-workstation.arena"),
		"of another job":       n.rank(t, user, job+1, "-job.arena"),
		"of another user":      n.rank(t, other, job, "-user.arena"),
		"of the other's other": n.rank(t, other, 0, "-user0.arena"),
	}
	n.killed(t, user, 0, "-killed0.arena")
	n.killed(t, other, job, "-theirs.arena")
	bystander := exec.Command("sleep", "600")
	bystander.Env = []string{"SLURM_JOB_ID=" + strconv.Itoa(job)}
	bystander.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}, Pdeathsig: syscall.SIGKILL}
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	stays["no rank"] = bystander

	theirs := n.prefix + "-theirs.arena"
	err := errors.Join(
		os.Symlink(theirs, n.prefix+"-link.arena"), os.Lchown(n.prefix+"-link.arena", user, user),
		os.Link(theirs, n.prefix+"-hard.arena"),
		syscall.Mkfifo(n.prefix+"-fifo.arena", 0o666), os.Lchown(n.prefix+"-fifo.arena", user, user),
		os.Mkdir(n.prefix+"-dir.arena", 0o777), os.Chown(n.prefix+"-dir.arena", user, user),
		os.WriteFile(n.prefix+"-text.arena", []byte("notes"), 0o666), os.Chown(n.prefix+"-text.arena", user, user),
		os.WriteFile(n.prefix+"-empty.arena", nil, 0o600), os.Chown(n.prefix+"-empty.arena", user, user),
		os.WriteFile(n.prefix+"-zeros.arena", make([]byte, 8<<20), 0o600), os.Chown(n.prefix+"-zeros.arena", user, user),
	)
	if err != nil {
		t.Fatal(err)
	}
	before := n.there(t)
	leave, stay := n.noteds(t, user, other, job)

	number := strconv.Itoa(job)
	for _, env := range [][]string{nil, {"SLURM_JOB_ID=" + number}, {"SLURM_JOB_ID=" + number, "SLURM_JOB_UID=root"}, {"SLURM_JOB_ID=" + number + "; rm", "SLURM_JOB_UID=65534"},
		{"SLURM_JOB_ID=0", "SLURM_JOB_UID=65534"}, {"SLURM_JOB_ID=99999999999999999999", "SLURM_JOB_UID=65534"}, {"SLURM_JOB_ID=" + number, "SLURM_JOB_UID=65532"}} {
		n.epilog(t, script, env...)
	}
	n.epilog(t, epilogScript(t, t.TempDir(), filepath.Join(n.dir, "missing")), "SLURM_JOB_ID="+number, "SLURM_JOB_UID=65534")
	if after := n.there(t); after != before {
		t.Errorf("of an epilog without a job, or without a program:\n%s\nwas\n%s", after, before)
	}
	for _, path := range append(leave, stay...) {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("after such an epilog: %v", err)
		}
	}

	n.epilog(t, script, "SLURM_JOB_ID="+number, "SLURM_JOB_UID="+strconv.Itoa(user))
	want := before
	for _, gone := range []string{`"-live.arena"`, `"-killed.arena"`, `"-odd \n*?.name"`} {
		if !strings.Contains(want, gone) {
			t.Errorf("%s was not there: %s", gone, want)
		}
		want = strings.TrimSpace(strings.Replace(want+" ", gone+" ", "", 1))
	}
	for _, path := range leave {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q is left, %v", path, err)
		}
	}
	for _, path := range stay {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("what is not the job's: %v", err)
		}
	}
	if after := n.there(t); after != want {
		t.Errorf("after the epilog:\n%s\nwant\n%s", after, want)
	}
	if err := ours.Wait(); err != nil { // it drains
		t.Errorf("the rank of the job: %v", err)
	}
	for name, cmd := range stays {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("a process %s: %v", name, err)
		}
	}
}

// TestArenaOfJob: a rank notes its job in its arena, one that takes it over its own, and nobody removes what a job of
// another user has left but root.
func TestArenaOfJob(t *testing.T) {
	const user = 65534
	n := newJobNode(t)
	job := 1<<23 + os.Getpid()
	jobOf := func() (job uint64) {
		out, err := exec.Command(program("cascade"), "arena", "list", "--json").Output()
		var all struct {
			Arenas []struct {
				Path string `json:"path"`
				Job  uint64 `json:"job"`
			} `json:"arenas"`
		}
		if err == nil {
			err = json.Unmarshal(out, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all.Arenas {
			if a.Path == n.prefix+".arena" {
				return a.Job
			}
		}
		t.Fatalf("%s is not listed: %s", n.prefix, out)
		return 0
	}
	for _, now := range []int{job, job + 1, 0} {
		n.killed(t, user, now, ".arena")
		if got := jobOf(); got != uint64(now) {
			t.Errorf("job %d, want %d", got, now)
		}
	}
	n.killed(t, user, job, ".arena")
	stranger := exec.Command("/proc/self/fd/3", "arena", "rm", "--job", strconv.Itoa(job), "--user", strconv.Itoa(user))
	exe, err := os.Open(program("cascade"))
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	stranger.ExtraFiles, stranger.Dir = []*os.File{exe}, "/"
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	out, err := stranger.CombinedOutput()
	if stranger.ProcessState == nil || stranger.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "only root") {
		t.Errorf("a stranger: %v: %s", err, out)
	}
	out, err = exec.Command(program("cascade"), "arena", "rm", "--job", strconv.Itoa(job), "--user", strconv.Itoa(user)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "removed "+n.prefix+".arena") {
		t.Errorf("root: %v: %s", err, out)
	}
}
