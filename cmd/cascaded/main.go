package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/config"
	"cascadekv/internal/cpus"
	"cascadekv/internal/earlysignal"
	"cascadekv/internal/heapfloor"
	_ "cascadekv/internal/malloc" // one C arena
	"cascadekv/internal/rank"
	"cascadekv/internal/rank/program"
	"cascadekv/slurm/job"
)

// Exit statuses, as doc.go lists them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// heapFloor is far below what a rank takes anyway, and some milliseconds' garbage of a
// busy one.
const heapFloor = 64 << 20

func main() {
	cpus.AllowWaiters()
	heapfloor.Set(heapFloor)
	os.Exit(realMain(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// launched returns the environment with CASCADE_RANK set to the number that mpirun
// or srun gave this process, unless it is set.
func launched(env []string) []string {
	variables := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		variables[name] = value
	}
	const name = config.EnvPrefix + "RANK"
	number, ok := job.Rank(func(k string) string { return variables[k] })
	if _, set := variables[name]; set || !ok {
		return env
	}
	return append(slices.Clone(env), name+"="+strconv.Itoa(number))
}

func realMain(args, env []string, stdout, stderr io.Writer) int {
	status := exitOK
	p, check := program.Started(args)
	p.Signals = program.Signals{Stop: earlysignal.Stop, Resume: earlysignal.Resume, Ending: earlysignal.Ending}
	command := newCommand(func(s config.Sources, rescues bool) {
		s.Env = launched(env)
		if check {
			earlysignal.Stop()
			status = checkHandover(s, stdout, stderr)
			return
		}
		if p.Ends {
			earlysignal.Enqueue(syscall.SIGTERM)
		}
		go followStep(os.Getppid())
		status = run(context.Background(), s, p, rescues, earlysignal.Signals, stderr)
	})
	command.SetArgs(p.Args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.Execute(); err != nil {
		fmt.Fprintf(stderr, "cascaded: %v; see cascaded --help\n", err)
		return exitUsage
	}
	return status
}

// stepPoll is how often a rank looks whether its step is there.
const stepPoll = time.Second

// followStep has a rank that Slurm started end in good order when slurmstepd, which started it, is gone: no signal of
// Slurm would reach it any more, and the end of the job would find it undrained.
func followStep(parent int) {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	if err != nil || strings.TrimSpace(string(name)) != "slurmstepd" {
		return
	}
	for os.Getppid() == parent {
		time.Sleep(stepPoll)
	}
	earlysignal.Enqueue(rank.StepLost) // not SIGTERM: a rank that drains would take it for an order to end without
}

// checkHandover prints what this program could take over, and returns the exit
// status.
func checkHandover(s config.Sources, stdout, stderr io.Writer) int {
	loaded, password, err := rank.Load(s)
	if err != nil {
		fmt.Fprintf(stderr, "cascaded: %v\n", err)
		return exitUsage
	}
	if program.WriteAbility(stdout, &loaded.Config, password) != nil {
		return exitFailure
	}
	return exitOK
}

// newCommand describes the command line and calls start with the sources it
// names, without the environment.
func newCommand(start func(s config.Sources, rescues bool)) *cobra.Command {
	rescues := false
	s := config.Sources{SystemDir: config.SystemDir, Flags: map[string]string{}}
	command := &cobra.Command{
		Use:   "cascaded",
		Short: "Run one rank of the CASCADE cache in the foreground",
		Long: "Run one rank of the CASCADE cache in the foreground.\n\n" +
			"Configuration: " + config.Precedence + ".\n" +
			"SIGHUP reloads it, SIGTERM and SIGINT drain to lustre and exit 0; one that comes later than " + rank.SameOrder.String() + "\nafter the first exits at once.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		Run:           func(*cobra.Command, []string) { start(s, rescues) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.File, "config", "", "configuration file, read after those of "+config.SystemDir)
	flags.BoolVar(&rescues, "rescue", false, "write to lustre what a killed rank of this configuration left in its arena, alone, and exit")
	defaults := config.Default()
	for _, k := range config.Keys() {
		f := flags.VarPF(&keyFlag{key: k, text: k.Text(&defaults), set: s.Flags}, k.Flag(), "", k.Help)
		if k.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	return command
}

// keyFlag is one configuration key as a flag. It keeps the text, which Load parses:
// a bad value is the same error from every source.
type keyFlag struct {
	key  config.Key
	text string
	set  map[string]string
}

func (f *keyFlag) String() string { return f.text }
func (f *keyFlag) Type() string   { return f.key.Type() }
func (f *keyFlag) Set(text string) error {
	f.text, f.set[f.key.Path] = text, text
	return nil
}
