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
	"cascadekv/internal/cores"
	"cascadekv/internal/earlysignal"
	_ "cascadekv/internal/malloc" // one C arena
	"cascadekv/slurm"
)

// Exit statuses, as doc.go lists them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	cores.AllowWaiters()
	os.Exit(realMain(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// launched makes the number that mpirun or srun gave this process count as
// CASCADE_RANK, unless that is set.
func launched(env []string) []string {
	variables := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		variables[name] = value
	}
	const name = config.EnvPrefix + "RANK"
	rank, ok := slurm.Rank(func(k string) string { return variables[k] })
	if _, set := variables[name]; set || !ok {
		return env
	}
	return append(slices.Clone(env), name+"="+strconv.Itoa(rank))
}

func realMain(args, env []string, stdout, stderr io.Writer) int {
	status := exitOK
	p, check := started(args)
	command := newCommand(func(s config.Sources) {
		s.Env = launched(env)
		if check {
			earlysignal.Stop()
			status = checkHandover(s, stdout, stderr)
			return
		}
		if p.ends {
			earlysignal.Enqueue(syscall.SIGTERM)
		}
		status = run(context.Background(), s, p.open, earlysignal.Signals, time.Now, stderr)
	})
	command.SetArgs(p.args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.Execute(); err != nil {
		fmt.Fprintf(stderr, "cascaded: %v; see cascaded --help\n", err)
		return exitUsage
	}
	return status
}

// newCommand describes the command line and calls start with the sources it
// names, without the environment.
func newCommand(start func(config.Sources)) *cobra.Command {
	s := config.Sources{SystemDir: config.SystemDir, Flags: map[string]string{}}
	command := &cobra.Command{
		Use:   "cascaded",
		Short: "Run one rank of the CASCADE cache in the foreground",
		Long: "Run one rank of the CASCADE cache in the foreground.\n\n" +
			"Configuration: " + config.Precedence + ".\n" +
			"SIGHUP reloads it, SIGTERM and SIGINT drain to lustre and exit 0; one that comes later than " + sameOrder.String() + "\nafter the first exits at once.",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		Run:           func(*cobra.Command, []string) { start(s) },
	}
	flags := command.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.File, "config", "", "configuration file, read after those of "+config.SystemDir)
	defaults := config.Default()
	for _, k := range config.Keys() {
		f := flags.VarPF(&keyFlag{key: k, text: k.Text(&defaults), set: s.Flags}, k.Flag(), "", k.Help)
		if k.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	return command
}

// keyFlag is one configuration key as a flag. It keeps the text; Load reads
// it, so that a bad value gets the same words from every source.
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
