package launch

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cascadekv/internal/config"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/nodeaddr"
	"cascadekv/slurm/job"
	"cascadekv/slurm/notes"
)

// Request is what is asked of Prepare.
type Request struct {
	Env      []string // as of os.Environ
	Nodes    string   // a number, a list of hosts, or "" for all of the job
	MPI      string   // one of Plugins
	Cascaded string   // the program
	File     string   // of the configuration, "" for none
	Socket   string   // "" for that of the configuration
	Dir      string   // that all nodes see; "" for lustre.dir, or else the current one
	Log      string   // of the ranks; "" for one in the current directory

	Node memlimit.Node // where the limits of memory are read

	// Load reads the configuration of a rank to which these keys are given as flags.
	Load func(flags map[string]string) (*config.Loaded, error)
}

// Plan is how ranks are started, and what their engine gets.
type Plan struct {
	Place   Place
	Config  *config.Loaded // of this node's rank
	MPI     string         // srun's --mpi; "none" outside Slurm too
	Command []string       // starts the ranks
	Env     []string       // of Command
	Dir     string         // is made for the job, and removed
	Log     string
	Name    string // of the step
	Size    string // how large arenas are and why, where that was decided here; else ""

	rank []string // the command of one rank, without what differs among them
}

// jobSocket is where ranks of a job listen unless the configuration names another
// place: the same on all nodes, so that engines on all of them get the same settings.
const jobSocket = "/tmp/cascade-{uid}/job{job}.sock"

// Prepare decides how ranks are started. Its errors are those of this package, of
// package job and of package config.
func Prepare(ctx context.Context, r Request) (*Plan, error) {
	j, err := job.Read(func(name string) string { return getenv(r.Env, name) })
	if errors.Is(err, job.ErrOutside) {
		j, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := &Plan{Log: r.Log, Env: environment(r.Env, j != nil)}
	if p.Place, err = locate(j, r.Nodes); err != nil {
		return nil, err
	}
	flags := map[string]string{}
	if j != nil {
		flags["rank"] = strconv.Itoa(p.Place.Rank)
	}
	if r.Socket != "" {
		flags["socket"] = r.Socket
	}
	if p.Config, err = r.Load(flags); err != nil {
		return nil, err
	}
	p.Place.Rank = p.Config.Rank
	if err := p.files(r); err != nil {
		return nil, err
	}
	if p.MPI, err = plugin(r.MPI, r.Cascaded, p.Config.Peers.Fabric); err != nil {
		return nil, err
	}
	if err := p.settings(flags, r); err != nil {
		return nil, err
	}
	if p.Config.Socket == "" {
		return nil, p.Config.Refuse("socket", "engines reach their rank by its unix socket, and none is configured", "leave it out")
	}
	rank := []string{r.Cascaded}
	if r.File != "" {
		rank = append(rank, "--config", r.File)
	}
	delete(flags, "rank") // srun gives each its own
	for _, k := range config.Keys() {
		if text, ok := flags[k.Path]; ok {
			rank = append(rank, "--"+k.Flag(), text)
		}
	}
	if j == nil {
		p.Command = rank
		return p, nil
	}
	return p, p.srun(ctx, rank)
}

// files names the files of the launch.
func (p *Plan) files(r Request) (err error) {
	name, of := "local", p.Place.Nodes[0]
	if j := p.Place.Job; j != nil {
		name, of = strconv.Itoa(j.ID), j.Node
	}
	p.Name = strings.TrimPrefix(notes.DirPrefix, ".") + name + "-" + of
	if r.Dir == "" {
		r.Dir = p.Config.Lustre.Dir
	}
	dir := "." + p.Name
	if p.Place.Job == nil { // launches with sockets of their own have files of their own
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(p.Config.Socket)) // it does not fail
		dir += "-" + strconv.FormatUint(uint64(hash.Sum32()), 16)
	}
	if p.Dir, err = filepath.Abs(filepath.Join(r.Dir, dir)); err != nil {
		return err
	}
	if p.Log == "" {
		p.Log = "cascade-" + name + ".log"
	}
	p.Log, err = filepath.Abs(p.Log)
	return err
}

// settings adds to flags what ranks of a job need besides their configuration.
func (p *Plan) settings(flags map[string]string, r Request) (err error) {
	if p.Place.Job == nil {
		return nil
	}
	if p.Config.Job == "" {
		flags["job"] = strconv.Itoa(p.Place.Job.ID)
	}
	if _, asked := flags["socket"]; !asked && p.Config.Origin("socket") == config.Built {
		flags["socket"] = jobSocket
	}
	flags["peers.fabric"] = "mpi"
	if p.MPI == "none" {
		flags["peers.fabric"] = "tcp"
	}
	flags["peers.ranks"] = strconv.Itoa(len(p.Place.Nodes))
	if p.Config.Peers.SecretFile == "" { // over MPI for ranks that come later
		flags["peers.secret_file"] = p.secretFile()
	}
	if err := p.size(flags, r.Node); err != nil {
		return err
	}
	p.Config, err = r.Load(flags)
	return err
}

func (p *Plan) secretFile() string { return filepath.Join(p.Dir, "secret") }

// LMCacheFile is where Run leaves the configuration of an LMCache.
func (p *Plan) LMCacheFile() string { return filepath.Join(p.Dir, "lmcache.yaml") }

// stepFlags are those of each step: one task on each node, beside what runs there.
var stepFlags = []string{"--ntasks-per-node=1", "--distribution=block", "--mem=0", "--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0",
	"--export=ALL", "--input=none", "--label"}

// srun makes the command of a step with one rank on each node. What it sets goes
// before what the batch script's own options left in the environment.
func (p *Plan) srun(ctx context.Context, rank []string) error {
	command := []string{"srun", "--overlap"}
	if parts := p.Place.Job.Components; parts != nil {
		var groups []string
		for i := range parts {
			groups = append(groups, strconv.Itoa(i))
		}
		command = append(command, "--het-group="+strings.Join(groups, ","))
	} else {
		n := strconv.Itoa(len(p.Place.Nodes))
		command = append(command, "--nodes="+n, "--ntasks="+n, "--nodelist="+list(p.Place.Nodes))
	}
	command = append(append(append(command, stepFlags...), "--mpi="+p.MPI), "--job-name="+p.Name, "--task-epilog="+p.taskEpilog())
	p.rank = slices.Clone(rank)
	if p.MPI == "none" {
		seed, fixed, err := p.seed(ctx)
		if err != nil {
			return err
		}
		rank = append(rank, "--peers-seeds", seed)
		if !fixed {
			// The one rank that others look for; they take any port.
			command = append(command, "sh", "-c", fmt.Sprintf(`[ "$SLURM_PROCID" != %d ] || set -- "$@" --peers-gossip '%s'; exec "$@"`, p.Place.Rank, seed), "sh")
		}
	}
	p.Command = append(command, rank...)
	return nil
}

// seed decides where this node's rank listens for gossip, for the others to know
// before they start. fixed: the configuration has a port, and ranks of all nodes use
// it.
func (p *Plan) seed(ctx context.Context) (address string, fixed bool, err error) {
	c := &p.Config.Peers
	place, err := nodeaddr.This().ListenAt(ctx, nodeaddr.Wish{Listen: c.Gossip, Advertise: c.Advertise, Interface: c.Interface})
	if err != nil {
		return "", false, fmt.Errorf("launch: peers.gossip: %w", err)
	}
	host, port, err := net.SplitHostPort(place.Bind)
	if err != nil {
		return "", false, fmt.Errorf("launch: peers.gossip: %w", err)
	}
	if fixed = port != "0"; !fixed {
		if port, err = nodeaddr.FreePort(ctx, host, c.Ports); err != nil {
			return "", false, fmt.Errorf("launch: a port for gossip: %w; set peers.gossip to one that is free on all nodes", err)
		}
	} else {
		host = place.Host()
	}
	return net.JoinHostPort(host, port), fixed, nil
}

// numbers begin the names of variables by which a launcher numbers its processes: those
// of one around this program would be taken for srun's.
var numbers = []string{"OMPI_COMM_WORLD_", "PMIX_", "PMI_"}

// environment is that of the ranks. Under srun it has no number for all of them.
func environment(env []string, underSrun bool) (kept []string) {
	refused := numbers
	if underSrun {
		refused = append(slices.Clone(numbers), config.EnvPrefix+"RANK=")
	}
	for _, v := range env {
		foreign := false
		for _, prefix := range refused {
			foreign = foreign || strings.HasPrefix(v, prefix)
		}
		if !foreign {
			kept = append(kept, v)
		}
	}
	return kept
}

func getenv(env []string, name string) string {
	for _, v := range env {
		if text, ok := strings.CutPrefix(v, name+"="); ok {
			return text
		}
	}
	return ""
}

// note notes the directory of the launch for the epilog of the job, until the function that it returns is called.
func (p *Plan) note(progress func(format string, args ...any)) (forget func()) {
	forget = func() {}
	if p.Place.Job == nil {
		return forget
	}
	id := job.Here(func(name string) string { return getenv(p.Env, name) })
	added, err := notes.Add(notes.Dir(os.Geteuid()), id, p.Dir)
	if err != nil {
		progress("the epilog of the job will not find %s if this launcher is killed: %v", p.Dir, err)
		return forget
	}
	return added
}

// writeFiles makes the directory of the launch with a secret, if ranks need one, and
// what LMCache reads. Only this user can see it.
func (p *Plan) writeFiles(secret, lmcache string) error {
	if err := os.MkdirAll(filepath.Dir(p.Dir), 0o700); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	if err := os.Mkdir(p.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("launch: %w; name a directory that all nodes see with --dir", err)
	}
	// Of a launch of this job that was killed there may be files.
	info, err := os.Lstat(p.Dir)
	if err == nil && (!info.IsDir() || info.Mode().Perm()&0o077 != 0) {
		err = fmt.Errorf("%s is not this user's alone: remove it", p.Dir)
	}
	if err == nil && p.Config.Peers.SecretFile == p.secretFile() {
		err = replace(p.secretFile(), secret+"\n", 0o600)
	}
	if err == nil {
		err = replace(p.LMCacheFile(), lmcache, 0o600)
	}
	if err == nil && p.Place.Job != nil {
		err = p.writeTaskEpilog()
	}
	if err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return nil
}

// replace writes a new file of that name.
func replace(name, text string, mode os.FileMode) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(name, []byte(text), mode)
}
