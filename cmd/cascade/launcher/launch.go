package launcher

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/memlimit"
	"cascadekv/internal/units"
	"cascadekv/slurm/launch"
)

// Tool is what the verb has from the program around it. Flags of that program are
// read when the verb runs.
type Tool struct {
	In       io.Reader
	Out, Err io.Writer
	Env      []string
	JSON     *bool
	Socket   *string // "" for that of the configuration
	File     *string // of the configuration, "" for none

	Load func(flags map[string]string) (*config.Loaded, error)
	// Engine returns the variables of an engine beside the rank of this configuration,
	// and the text of LMCache's file.
	Engine func(c *config.Loaded, hostPool units.Bytes) (env map[string]string, lmcache string)
}

// Ended is the end of an engine: this program's exit status is the engine's.
type Ended struct{ Status int }

// Error implements error.
func (e *Ended) Error() string { return fmt.Sprintf("the engine ended with status %d", e.Status) }

// options are the flags.
type options struct {
	launch.Request
	ready, grace, notice time.Duration
	hostPool             units.Bytes
	print                bool
	printEnv             bool
}

// Command returns the verb launch.
func (t *Tool) Command() *cobra.Command {
	o := options{hostPool: 8 * units.GiB}
	c := &cobra.Command{
		Use:   "launch [flags] [-- ENGINE ARGUMENT...]",
		Short: "Start a rank on each node of this Slurm job, run an engine beside them, and drain",
		Long: "Start a rank on each node of this Slurm job, as a step beside the engine; run the engine once they are one cache,\n" +
			"with its settings in the environment; then have the ranks drain and end, in time before the limit of the job. Signals go to the engine, and the exit\n" +
			"status is the engine's. Without an engine the ranks run until SIGTERM. Outside Slurm one rank runs on this machine.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return cli.Usagef("launch: the engine's command comes after --, and %q before it", args[0])
			}
			return t.launch(cmd, o, args)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Nodes, "nodes", "", "on how many nodes, or on which, such as n[1-4] (default: all of the job)")
	f.StringVar(&o.MPI, "mpi", "auto", "srun's plugin: "+strings.Join(launch.Plugins, ", ")+"; none is TCP, auto suits cascaded")
	f.StringVar(&o.Cascaded, "cascaded", "", "the rank's program (default: beside this one, or in PATH)")
	f.StringVar(&o.Dir, "dir", "", "directory that all nodes see, for the job's secret (default: lustre.dir, or the current one)")
	f.StringVar(&o.Log, "log", "", "file for the words of the ranks (default: cascade-JOB.log)")
	f.Var(&o.hostPool, "host-pool", "memory of vLLM's primary tier in /dev/shm, in the settings of the engine")
	cli.DurationVar(f, &o.ready, "ready", 2*time.Minute, "longest wait for the ranks to become one cache")
	cli.DurationVar(f, &o.grace, "grace", 30*time.Second, "how long the engine may take to end after SIGTERM")
	cli.DurationVar(f, &o.notice, "notice", 0, "how long before the job's time limit the engine gets SIGTERM (default: --grace, deadline.drain and 20s)")
	f.BoolVar(&o.print, "print", false, "print how the ranks would be started, and start nothing")
	f.BoolVar(&o.printEnv, "print-env", false, "print the settings of the engine, and start nothing")
	return c
}

func (t *Tool) launch(cmd *cobra.Command, o options, engine []string) (err error) {
	if o.Cascaded == "" {
		if o.Cascaded, err = cli.Find("cascaded"); err != nil {
			return fmt.Errorf("launch: %w; name the program with --cascaded", err)
		}
	}
	if o.Cascaded, err = filepath.Abs(o.Cascaded); err != nil {
		return err
	}
	o.Env, o.Socket, o.Load, o.Node = t.Env, *t.Socket, t.Load, memlimit.Node{Root: "/"}
	if *t.File != "" {
		if o.File, err = filepath.Abs(*t.File); err != nil {
			return err
		}
	}
	plan, err := launch.Prepare(cmd.Context(), o.Request)
	for _, mistake := range []error{launch.ErrElsewhere, launch.ErrNodes, launch.ErrPlugin} {
		if errors.Is(err, mistake) {
			return cli.AsUsage(err)
		}
	}
	if err != nil {
		return err
	}
	env, lmcache := t.settings(plan, o.hostPool)
	switch {
	case o.print:
		return t.printPlan(plan)
	case o.printEnv:
		return t.printEnv(env)
	}
	s := launch.Session{Env: slices.Clone(t.Env), LMCache: lmcache, In: t.In, Out: t.Out, Err: t.Err, Ready: o.ready, Grace: o.grace, Notice: o.notice}
	if len(engine) > 0 {
		s.Engine = engine
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		s.Env = append(s.Env, name+"="+env[name])
	}
	signals := make(chan os.Signal, 16)
	// The program's own way to end by signals would leave the engine behind.
	signal.Reset(syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	s.Signals = signals
	status, err := plan.Run(cmd.Context(), s)
	if err != nil {
		cli.Status(t.Err, err)
	}
	if status != cli.OK {
		return &Ended{status}
	}
	return nil
}

// settings are the variables of the engine that its user has not set: keys depend on
// PYTHONHASHSEED, and who chose one shares with those who chose the same.
func (t *Tool) settings(p *launch.Plan, hostPool units.Bytes) (map[string]string, string) {
	env, lmcache := t.Engine(p.Config, hostPool)
	env["LMCACHE_CONFIG_FILE"] = p.LMCacheFile()
	for _, name := range []string{"PYTHONHASHSEED", "LMCACHE_CONFIG_FILE"} {
		if slices.ContainsFunc(t.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
			delete(env, name)
		}
	}
	return env, lmcache
}

// printPlan writes shell commands with comments.
func (t *Tool) printPlan(p *launch.Plan) error {
	if *t.JSON {
		return cli.PrintJSON(t.Out, map[string]any{"nodes": p.Place.Nodes, "rank": p.Place.Rank, "mpi": p.MPI, "command": p.Command,
			"socket": p.Config.Socket, "shm_bytes": int64(p.Config.Shm.Bytes), "log": p.Log, "dir": p.Dir})
	}
	var b strings.Builder
	if p.MPI == launch.CrayShasta {
		b.WriteString("# not run: no Cray was at hand to try cray_shasta on\n")
	}
	fmt.Fprintf(&b, "# ranks: %d, this node's: %d, at %s\n", len(p.Place.Nodes), p.Place.Rank, p.Config.Socket)
	if p.Size != "" {
		fmt.Fprintf(&b, "# %s\n", p.Size)
	}
	if p.Config.Peers.Fabric == "tcp" {
		fmt.Fprintf(&b, "# %s has the job's secret while it runs\n", p.Dir)
	}
	var words []string
	for _, w := range p.Command {
		words = append(words, cli.ShellQuote(w))
	}
	fmt.Fprintf(&b, "%s >>%s 2>&1\n", strings.Join(words, " "), cli.ShellQuote(p.Log))
	if j := p.Place.Job; j != nil {
		b.WriteString("# at the end, STEP being that which squeue --steps lists as " + p.Name + "\nscancel --signal=TERM " + strconv.Itoa(j.ID) + ".STEP\n")
	}
	_, err := io.WriteString(t.Out, b.String())
	return err
}

func (t *Tool) printEnv(env map[string]string) error {
	if *t.JSON {
		return cli.PrintJSON(t.Out, env)
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "export %s=%s\n", name, cli.ShellQuote(env[name]))
	}
	_, err := io.WriteString(t.Out, b.String())
	return err
}
