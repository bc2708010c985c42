package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cascadekv/internal/config"
	"cascadekv/internal/testing/testneed"
	"cascadekv/slurm/job"
)

// inJob is the environment of a batch script on n0 of n[0-2], as Slurm sets it, and more.
func inJob(more ...string) []string {
	return append([]string{"HOME=/home/u", "SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=n[0-2]", "SLURMD_NODENAME=n0", "SLURM_PROCID=0"}, more...)
}

// prepare is Prepare with a configuration of env alone, and a program without MPI.
func prepare(t *testing.T, r Request) (*Plan, error) {
	t.Helper()
	if r.MPI == "" {
		r.MPI = "auto"
	}
	if r.Cascaded == "" {
		r.Cascaded = os.Args[0]
	}
	r.Load = func(flags map[string]string) (*config.Loaded, error) {
		return config.Load(config.Sources{Env: r.Env, Flags: flags})
	}
	return Prepare(t.Context(), r)
}

// valueOf returns the value of a flag of a command, which has it as one word or two.
func valueOf(command []string, flag string) string {
	for i, word := range command {
		if value, ok := strings.CutPrefix(word, flag+"="); ok {
			return value
		}
		if word == flag && i+1 < len(command) {
			return command[i+1]
		}
	}
	return ""
}

func TestPrepareStep(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	p, err := prepare(t, Request{Env: inJob("PMI_RANK=4", "CASCADE_RANK=9", "PMIX_RANK=1", "CASCADE_PEERS_ADVERTISE=127.0.0.1"), File: "/etc/c.toml"})
	if err != nil {
		t.Fatal(err)
	}
	socket := "/tmp/cascade-" + strconv.Itoa(os.Getuid()) + "/job17.sock"
	if p.Config.Socket != socket || p.Config.Rank != 0 || p.Config.Job != "17" || p.MPI != "none" || p.Log != filepath.Join(here, "cascade-17.log") {
		t.Errorf("%+v", p)
	}
	for flag, want := range map[string]string{
		"--nodes": "3", "--ntasks": "3", "--ntasks-per-node": "1", "--nodelist": "n[0-2]", "--distribution": "block", "--mpi": "none", "--wait": "0",
		"--kill-on-bad-exit": "0", "--mem": "0", "--export": "ALL", "--job-name": "cascade-17-n0",
		"--config": "/etc/c.toml", "--job": "17", "--socket": jobSocket, "--peers-fabric": "tcp", "--peers-ranks": "3", "--peers-secret-file": filepath.Join(here, ".cascade-17-n0", "secret"),
		"--task-epilog": filepath.Join(here, ".cascade-17-n0", "rank-ended"),
	} {
		if got := valueOf(p.Command, flag); got != want {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}
	for _, word := range []string{"srun", "--overlap", "--no-kill", os.Args[0]} {
		if !slices.Contains(p.Command, word) {
			t.Errorf("%s is not in %q", word, p.Command)
		}
	}
	if valueOf(p.Command, "--rank") != "" {
		t.Error("all ranks get one number")
	}
	for _, v := range p.Env {
		if strings.HasPrefix(v, "PMI") || strings.HasPrefix(v, "CASCADE_RANK=") {
			t.Errorf("a rank would take %s for its number", v)
		}
	}
	seed := valueOf(p.Command, "--peers-seeds")
	if host, port, err := net.SplitHostPort(seed); err != nil || host != "127.0.0.1" || port == "0" {
		t.Errorf("the seed is %q, %v", seed, err)
	}
	script := valueOf(p.Command, "-c")
	if !strings.Contains(script, `"$SLURM_PROCID" != 0`) || !strings.Contains(script, "--peers-gossip '"+seed+"'") {
		t.Errorf("ranks run %s", script)
	}
}

// TestSeedScript runs what each task runs: the rank of the launcher's node listens
// where the others look for it.
func TestSeedScript(t *testing.T) {
	t.Chdir(t.TempDir())
	printer := filepath.Join(t.TempDir(), "a printer")
	if err := os.WriteFile(printer, []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(inJob("SLURMD_NODENAME=n1", "CASCADE_PEERS_ADVERTISE=127.0.0.1"), func(v string) bool { return v == "SLURMD_NODENAME=n0" })
	p, err := prepare(t, Request{Env: env, Cascaded: printer})
	if err != nil {
		t.Fatal(err)
	}
	command := p.Command[slices.Index(p.Command, "sh"):]
	for rank := range 3 {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "SLURM_PROCID=" + strconv.Itoa(rank)}
		out, err := cmd.Output()
		words := strings.Fields(string(out))
		gossip := ""
		if rank == 1 {
			gossip = valueOf(p.Command, "--peers-seeds")
		}
		if err != nil || valueOf(words, "--peers-fabric") != "tcp" || valueOf(words, "--peers-gossip") != gossip {
			t.Errorf("rank %d gets %q, %v", rank, words, err)
		}
	}
}

func TestPrepareVariants(t *testing.T) {
	t.Chdir(t.TempDir())
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const lo = "CASCADE_PEERS_ADVERTISE=127.0.0.1"
	for name, c := range map[string]struct {
		r    Request
		want map[string]string // flags
		rank int
	}{
		"on another node":    {Request{Env: inJob(lo), Nodes: "2"}, map[string]string{"--nodelist": "n[0-1]", "--ntasks": "2"}, 0},
		"some nodes":         {Request{Env: inJob(lo), Nodes: "n2,n0"}, map[string]string{"--nodelist": "n[0,2]"}, 0},
		"a fixed port":       {Request{Env: inJob(lo, "CASCADE_PEERS_GOSSIP=:7946")}, map[string]string{"--peers-seeds": "127.0.0.1:7946", "-c": "", "--peers-gossip": ""}, 0},
		"all addresses":      {Request{Env: inJob(lo, "CASCADE_PEERS_GOSSIP=0.0.0.0:7946")}, map[string]string{"--peers-seeds": "127.0.0.1:7946"}, 0},
		"over IPv6":          {Request{Env: inJob("CASCADE_PEERS_ADVERTISE=::1", "CASCADE_PEERS_GOSSIP=:7946")}, map[string]string{"--peers-seeds": "[::1]:7946"}, 0},
		"a secret":           {Request{Env: inJob(lo, "CASCADE_PEERS_SECRET_FILE="+secret)}, map[string]string{"--peers-secret-file": ""}, 0},
		"a socket":           {Request{Env: inJob(lo, "CASCADE_SOCKET=/run/r{rank}.sock")}, map[string]string{"--socket": ""}, 0},
		"a socket by flag":   {Request{Env: inJob(lo), Socket: "/run/x{rank}.sock"}, map[string]string{"--socket": "/run/x{rank}.sock"}, 0},
		"a job of its own":   {Request{Env: inJob(lo, "CASCADE_JOB=mine")}, map[string]string{"--job": ""}, 0},
		"a heterogeneous":    {Request{Env: inJob(lo, "SLURM_HET_SIZE=2", "SLURM_JOB_ID_HET_GROUP_0=17", "SLURM_JOB_NODELIST_HET_GROUP_0=n7", "SLURM_JOB_ID_HET_GROUP_1=18", "SLURM_JOB_NODELIST_HET_GROUP_1=n[0-1]")}, map[string]string{"--het-group": "0,1", "--nodes": "", "--nodelist": ""}, 1},
		"a lustre directory": {Request{Env: inJob(lo, "CASCADE_LUSTRE_DIR=/lustre/kv")}, map[string]string{"--peers-secret-file": "/lustre/kv/.cascade-17-n0/secret"}, 0},
		"a directory":        {Request{Env: inJob(lo, "CASCADE_LUSTRE_DIR=/lustre/kv"), Dir: "/home/u"}, map[string]string{"--peers-secret-file": "/home/u/.cascade-17-n0/secret"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := prepare(t, c.r)
			if err != nil {
				t.Fatal(err)
			}
			for flag, want := range c.want {
				if got := valueOf(p.Command, flag); got != want {
					t.Errorf("%s is %q, want %q", flag, got, want)
				}
			}
			if p.Place.Rank != c.rank || p.Config.Rank != c.rank {
				t.Errorf("this node's rank is %d, and %d in its configuration, want %d", p.Place.Rank, p.Config.Rank, c.rank)
			}
		})
	}
}

func TestPrepareOutside(t *testing.T) {
	t.Chdir(t.TempDir())
	p, err := prepare(t, Request{Env: []string{"SLURM_CONF=/etc/slurm.conf"}})
	if err != nil || p.Place.Job != nil || len(p.Place.Nodes) != 1 || !slices.Equal(p.Command, []string{os.Args[0]}) {
		t.Fatalf("%+v, %v", p, err)
	}
	p, err = prepare(t, Request{Env: []string{"CASCADE_RANK=3", "CASCADE_SOCKET=/run/r{rank}.sock", "PMI_RANK=7"}})
	if err != nil || p.Place.Rank != 3 || p.Config.Socket != "/run/r3.sock" || !slices.Equal(p.Env, []string{"CASCADE_RANK=3", "CASCADE_SOCKET=/run/r{rank}.sock"}) {
		t.Errorf("a number of its own: %+v, %v", p, err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, c := range map[string]struct {
		r    Request
		want error
	}{
		"on a login node":     {Request{Env: []string{"SLURM_JOB_ID=17", "SLURM_NODELIST=n[0-2]"}}, ErrElsewhere},
		"nodes without this":  {Request{Env: inJob(), Nodes: "n[1-2]"}, ErrElsewhere},
		"nodes of another":    {Request{Env: inJob(), Nodes: "n[0-3]"}, ErrNodes},
		"too many nodes":      {Request{Env: inJob(), Nodes: "4"}, ErrNodes},
		"no nodes":            {Request{Env: inJob(), Nodes: "0"}, ErrNodes},
		"no list":             {Request{Env: inJob(), Nodes: "n[0"}, ErrNodes},
		"nodes outside Slurm": {Request{Nodes: "2"}, ErrNodes},
		"part of a het job":   {Request{Env: inJob("SLURM_HET_SIZE=1", "SLURM_JOB_ID_HET_GROUP_0=17", "SLURM_JOB_NODELIST_HET_GROUP_0=n[0-2]"), Nodes: "1"}, ErrNodes},
		"another plugin":      {Request{Env: inJob(), MPI: "pmi1"}, ErrPlugin},
		"MPI without MPI":     {Request{Env: inJob(), MPI: "pmix"}, ErrPlugin},
		"no program":          {Request{Env: inJob(), Cascaded: "/nowhere/cascaded"}, os.ErrNotExist},
		"a broken variable":   {Request{Env: append([]string{"SLURM_JOB_ID=x"}, inJob()...)}, job.ErrEnvironment},
		"a long socket":       {Request{Env: inJob(), Socket: "/" + strings.Repeat("x", config.MaxSocketPath)}, config.ErrValue},
		"no socket":           {Request{Env: inJob("CASCADE_SOCKET=", "CASCADE_LISTEN=127.0.0.1:0")}, config.ErrValue},
	} {
		if p, err := prepare(t, c.r); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, p, err, c.want)
		}
	}
}

// TestPluginOf reads programs that Debian builds with each MPI.
func TestPluginOf(t *testing.T) {
	for program, want := range map[string]string{"ompi_info": "pmix", "mpichversion": "pmi2", "true": "none"} {
		t.Run(program, func(t *testing.T) {
			path := testneed.Program(t, program, "make tools")
			if got, err := pluginOf(path); got != want || err != nil {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		})
	}
	script := filepath.Join(t.TempDir(), "cascaded")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for program, asked := range map[string]string{os.Args[0]: "auto", script: "none"} {
		if got, err := plugin(asked, program, "off"); got != "none" || err != nil {
			t.Errorf("%s: %s, %v", program, got, err)
		}
	}
}

func TestWriteFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	p, err := prepare(t, Request{Env: inJob("CASCADE_PEERS_ADVERTISE=127.0.0.1"), Dir: "new/dir"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a launch that was killed leaves its files
		if err := p.writeFiles("a secret of the job", "remote_url: x\n"); err != nil {
			t.Fatal(err)
		}
	}
	if secret, err := p.Config.Peers.Secret(); secret != "a secret of the job" || err != nil {
		t.Errorf("ranks read %q, %v", secret, err)
	}
	if text, err := os.ReadFile(p.LMCacheFile()); string(text) != "remote_url: x\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if err := os.Chmod(p.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := p.writeFiles("x", ""); err == nil {
		t.Error("a directory that others can read was taken")
	}
	if err := errors.Join(os.RemoveAll(p.Dir), os.Symlink(t.TempDir(), p.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := p.writeFiles("x", ""); err == nil {
		t.Error("a link to another directory was taken")
	}
}

// TestSeedInRange: the port at which ranks look for each other is one that the firewall lets through,
// and that is free.
func TestSeedInRange(t *testing.T) {
	t.Chdir(t.TempDir())
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken := busy.Addr().(*net.TCPAddr).Port
	ports := fmt.Sprintf("%d-%d", taken-20, taken)
	p, err := prepare(t, Request{Env: inJob("CASCADE_PEERS_ADVERTISE=127.0.0.1", "CASCADE_PEERS_PORTS="+ports)})
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(valueOf(p.Command, "--peers-seeds"))
	if n, _ := strconv.Atoi(port); err != nil || n < taken-20 || n >= taken {
		t.Errorf("port %s of %s, %v; %d is taken", port, ports, err, taken)
	}
}
