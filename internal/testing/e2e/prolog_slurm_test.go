package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// siteScript is a script of configs/slurm in a directory, with values of some of its variables.
func siteScript(t *testing.T, dir, name string, values map[string]string) string {
	t.Helper()
	text, err := os.ReadFile("../../../configs/slurm/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	set := 0
	for line := range strings.Lines(string(text)) {
		variable, _, _ := strings.Cut(line, "=")
		if value, ok := values[variable]; ok {
			line = variable + "=" + value + "\n"
			set++
		}
		lines = append(lines, line)
	}
	if set != len(values) {
		t.Fatalf("%s sets %d variables of %v", name, set, values)
	}
	script := filepath.Join(dir, name)
	if err := os.WriteFile(script, []byte(strings.Join(lines, "")), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// site is a site whose prolog starts ranks, and a directory of a user on it.
type site struct {
	jobNode
	top  string // of scripts, configuration and key
	home string // the user's
	cli  string // cascade, for the user
	conf []string
}

const siteUser = 65534

func newSite(t *testing.T) site {
	t.Helper()
	s := site{jobNode: newJobNode(t)}
	s.top, s.home, s.cli = filepath.Join(s.dir, "site"), filepath.Join(s.dir, "home"), filepath.Join(s.dir, "cascade")
	text, err := os.ReadFile(program("cascade"))
	config := fmt.Sprintf("[shm]\nbytes = \"8MiB\"\npath = \"%s-{job}-{rank}.arena\"\n[lustre]\ndir = %q\nindex = \"off\"\n[peers]\nadvertise = \"127.0.0.1\"\n", s.prefix, filepath.Join(s.home, "kv"))
	err = errors.Join(err, os.WriteFile(s.cli, text, 0o755), os.Mkdir(s.top, 0o755), os.Mkdir(s.home, 0o700), os.Chown(s.home, siteUser, siteUser),
		os.WriteFile(filepath.Join(s.top, "job.toml"), []byte(config), 0o644), os.WriteFile(filepath.Join(s.top, "job.key"), []byte(strings.Repeat("k", 44)), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	// Nodes on one host differ by their directories.
	run := filepath.Join(s.top, "run-$SLURMD_NODENAME")
	s.conf = []string{"PrologFlags=Alloc",
		"Prolog=" + s.prolog(t, s.top, s.cascaded),
		"Epilog=" + siteScript(t, s.top, "epilog.sh", map[string]string{"cascade": s.cli, "run": run}),
		"TaskProlog=" + siteScript(t, s.top, "taskprolog.sh", map[string]string{"run": run}),
		fmt.Sprint("FirstJobId=", 3<<24+os.Getpid()),
	}
	return s
}

// prolog is the site's prolog with a program of ranks, in a directory.
func (s site) prolog(t *testing.T, dir, cascaded string) string {
	t.Helper()
	return siteScript(t, dir, "prolog.sh", map[string]string{"cascaded": cascaded, "config": filepath.Join(s.top, "job.toml"),
		"key": filepath.Join(s.top, "job.key"), "run": filepath.Join(s.top, "run-$SLURMD_NODENAME"), "host": "127.0.0.1"})
}

// run runs a script of sh in a job of the user on three nodes, and returns its words when the nodes are idle again.
func (s site) run(t *testing.T, c cluster, script string, options ...string) string {
	t.Helper()
	out, file := filepath.Join(s.home, "job.out"), filepath.Join(s.home, "job.sh")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	os.Remove(out)
	args := append([]string{"--parsable", "--uid=" + fmt.Sprint(siteUser), "--gid=" + fmt.Sprint(siteUser), "--chdir=" + s.home, "--output=" + out, "--nodes=3", "--time=10", "--no-requeue", "--export=PATH,SLURM_CONF"}, options...)
	b := &batchJob{c: c, id: strings.TrimSpace(c.slurm(t, "sbatch", append(args, file)...))}
	t.Cleanup(func() { c.slurm(t, "scancel", b.id) })
	if got := b.status(t); got != 7 {
		t.Errorf("exit status %d, want 7", got)
	}
	until(t, "idle nodes", func() bool {
		return strings.Count(c.slurm(t, "sinfo", "--noheader", "--Node", "--format=%T"), "idle\n") == mpiRanks
	})
	if reasons := c.slurm(t, "sinfo", "--noheader", "--list-reasons"); reasons != "" {
		t.Errorf("nodes have reasons: %s", reasons)
	}
	words, err := os.ReadFile(out)
	if err != nil {
		t.Error(err)
	}
	return string(words)
}

// TestPrologUnderSlurm: jobs of a real Slurm that ask for it by a constraint find a cache of all their nodes, with their
// user's rights, also in each component of a heterogeneous job, and what they leave there is in lustre after them. Other jobs have none, and no job is hindered when
// there is no rank.
func TestPrologUnderSlurm(t *testing.T) {
	long(t)
	s := newSite(t)
	c := startCluster(t, s.conf...)
	c.slurm(t, "scontrol", "update", "NodeName=n0,n1,n2", "AvailableFeatures=cascade", "ActiveFeatures=cascade")
	engine := fmt.Sprintf(`CLI=%s
		n=0; until [ "$("$CLI" status | grep -c ' alive ')" = 3 ] || [ $n = 600 ]; do sleep .1; n=$((n + 1)); done
		"$CLI" status; id -u
		head -c 100000 /dev/zero >bytes; "$CLI" put --key k bytes
		srun --overlap --ntasks-per-node=1 sh -c 'echo "$SLURMD_NODENAME: $CASCADE_SOCKET $("'$CLI'" get k | wc -c)"'; exit 7`, s.cli)
	words := s.run(t, c, engine, "--constraint=cascade")
	if n := len(aliveRanks.FindAllString(words, -1)); n != 3 {
		t.Errorf("the job sees %d ranks, want 3:\n%s", n, words)
	}
	s.wantSockets(t, words)
	if strings.Count(words, " 100000\n") != 3 {
		t.Errorf("not all nodes have the value:\n%s", words)
	}
	s.cleared(t)
	segments, err := filepath.Glob(filepath.Join(s.home, "kv", "*", "agg_rank*.bin"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("nothing was drained, %v", err)
	}
	if info, err := os.Stat(segments[0]); err != nil || info.Sys().(*syscall.Stat_t).Uid != siteUser {
		t.Errorf("%s is not the user's, %v", segments[0], err)
	}

	words = s.run(t, c, `srun --het-group=0,1 --ntasks-per-node=1 sh -c 'echo "$SLURMD_NODENAME: $CASCADE_SOCKET"'; exit 7`,
		"--constraint=cascade", "--nodes=1", ":", "--constraint=cascade", "--nodes=2")
	s.wantSockets(t, words)
	s.cleared(t)

	if words := s.run(t, c, `echo "socket: $CASCADE_SOCKET."; exit 7`); words != "socket: .\n" {
		t.Errorf("a job without the constraint has\n%s", words)
	}
	s.prolog(t, s.top, "/nowhere/cascaded")
	if words := s.run(t, c, `echo "socket: $CASCADE_SOCKET."; exit 7`, "--constraint=cascade"); words != "socket: .\n" {
		t.Errorf("a job without a rank has\n%s", words)
	}
	s.cleared(t)
}

// wantSockets fails the test unless a task on each node says that it found the socket of its node's rank.
func (s site) wantSockets(t *testing.T, words string) {
	t.Helper()
	for _, node := range []string{"n0", "n1", "n2"} {
		if want := fmt.Sprintf("%s: %s/run-%s/job", node, s.top, node); !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, words)
		}
	}
}

// cleared fails the test if anything of a job is left on the nodes.
func (s site) cleared(t *testing.T) {
	t.Helper()
	if left := s.there(t); left != "" {
		t.Errorf("arenas are left: %s", left)
	}
	if left, err := filepath.Glob(filepath.Join(s.top, "run-*", "*")); len(left) > 0 || err != nil {
		t.Errorf("%q is left, %v", left, err)
	}
	until(t, "the end of all ranks", func() bool { return len(processesOf(t, s.cascaded)) == 0 })
}

// TestPrologRefuses: the prolog's status is 0, and it ends, whatever it is given, and nothing is started.
func TestPrologRefuses(t *testing.T) {
	s := newSite(t)
	job, user := fmt.Sprint("SLURM_JOB_ID=", 3<<24+os.Getpid()), fmt.Sprint("SLURM_JOB_UID=", siteUser)
	conf := filepath.Join(s.top, "slurm.conf") // scontrol reads one
	if err := os.WriteFile(conf, []byte("ClusterName=c\nSlurmctldHost=localhost\nNodeName=n0\nPartitionName=p Nodes=ALL\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	whole := []string{job, user, "SLURM_JOB_CONSTRAINTS=cascade", "SLURM_NODELIST=n0", "SLURMD_NODENAME=n0", "SLURM_CONF=" + conf, "PATH=/usr/bin:/bin"}
	t.Run("a job", func(t *testing.T) { // that the others differ from
		s.epilog(t, filepath.Join(s.top, "prolog.sh"), whole...)
		if len(processesOf(t, s.cascaded)) != 1 || s.there(t) == "" {
			t.Error("no rank is started")
		}
		s.epilog(t, filepath.Join(s.top, "epilog.sh"), whole...)
		s.cleared(t)
	})
	for name, env := range map[string][]string{
		"nothing":            nil,
		"no constraint":      append(whole[:len(whole):len(whole)], "SLURM_JOB_CONSTRAINTS="),
		"another constraint": append(whole[:len(whole):len(whole)], "SLURM_JOB_CONSTRAINTS=cascade2&no_cascade"),
		"a hostile job":      append(whole[:len(whole):len(whole)], job+"; touch /x"),
		"a hostile node":     append(whole[:len(whole):len(whole)], "SLURM_NODELIST=$(touch /x)", "SLURMD_NODENAME=../n0"),
		"another node":       append(whole[:len(whole):len(whole)], "SLURMD_NODENAME=n1"),
		"no such user":       append(whole[:len(whole):len(whole)], "SLURM_JOB_UID=4000000"),
	} {
		t.Run(name, func(t *testing.T) {
			s.epilog(t, filepath.Join(s.top, "prolog.sh"), env...)
			s.cleared(t)
		})
	}
	t.Run("a key that others can read", func(t *testing.T) {
		key := filepath.Join(s.top, "job.key")
		if err := os.Chmod(key, 0o644); err != nil {
			t.Fatal(err)
		}
		s.epilog(t, filepath.Join(s.top, "prolog.sh"), whole...)
		s.cleared(t)
		if err := os.Chmod(key, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a user's link", func(t *testing.T) { // in the directory of a job that was requeued
		dir, target := filepath.Join(s.top, "run-n0", strings.Replace(job, "SLURM_JOB_ID=", "job", 1)), filepath.Join(s.top, "target")
		err := errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, siteUser, siteUser), os.WriteFile(target, []byte("root's"), 0o600),
			os.Symlink(target, filepath.Join(dir, "rank.log")), os.Symlink(target, filepath.Join(dir, "secret")))
		if err != nil {
			t.Fatal(err)
		}
		s.epilog(t, filepath.Join(s.top, "prolog.sh"), whole...)
		if text, err := os.ReadFile(target); err != nil || string(text) != "root's" {
			t.Errorf("through the link came %q, %v", text, err)
		}
		s.epilog(t, filepath.Join(s.top, "epilog.sh"), whole...)
		s.cleared(t)
		if _, err := os.Stat(target); err != nil {
			t.Error(err)
		}
	})
	t.Run("a program that hangs", func(t *testing.T) {
		dir := t.TempDir()
		hangs := filepath.Join(s.dir, "hangs")
		if err := os.WriteFile(hangs, []byte("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(s.prolog(t, dir, hangs))
		cmd.Env = whole
		began := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v, %q", err, out)
		}
		t.Logf("after %v", time.Since(began).Round(time.Millisecond))
		if len(processesOf(t, hangs)) == 0 {
			t.Error("it was not started")
		}
		for _, name := range mustGlob(t, "/proc/[0-9]*/cmdline") {
			line, _ := os.ReadFile(name) // it may have just ended
			var pid int
			if _, err := fmt.Sscanf(name, "/proc/%d/cmdline", &pid); err == nil && strings.Contains(string(line), hangs) {
				_ = syscall.Kill(pid, syscall.SIGKILL) // likewise
			}
		}
		s.epilog(t, filepath.Join(s.top, "epilog.sh"), whole...)
		s.cleared(t)
	})
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestTaskProlog: a task gets the socket of its own job's rank on this node, and of no other job's.
func TestTaskProlog(t *testing.T) {
	dir := t.TempDir()
	script := siteScript(t, dir, "taskprolog.sh", map[string]string{"run": dir})
	for _, job := range []string{"job2", "job7"} {
		l, err := net.Listen("unix", filepath.Join(dir, job+"-listens"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if err := errors.Join(os.Mkdir(filepath.Join(dir, job), 0o700), os.Rename(l.Addr().String(), filepath.Join(dir, job, "rank.sock"))); err != nil {
			t.Fatal(err)
		}
	}
	for env, want := range map[string]string{
		"SLURM_JOB_ID=7": "7",
		"SLURM_JOB_ID=8": "",
		"SLURM_JOB_ID=1 SLURM_JOB_ID_HET_GROUP_0=1 SLURM_JOB_ID_HET_GROUP_1=2": "2",
		"SLURM_JOB_ID=1 SLURM_JOB_ID_HET_GROUP_0=1 SLURM_JOB_ID_HET_GROUP_1=3": "",
		"SLURM_JOB_ID=5 SLURM_JOB_ID_HET_GROUP_0=1 SLURM_JOB_ID_HET_GROUP_1=2": "", // submitted by such a job
	} {
		cmd := exec.Command(script)
		cmd.Env = append(strings.Fields(env), "PATH=/usr/bin:/bin")
		if want != "" {
			want = "export CASCADE_SOCKET=" + filepath.Join(dir, "job"+want, "rank.sock") + "\n"
		}
		if out, err := cmd.CombinedOutput(); string(out) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", env, out, err, want)
		}
	}
}
