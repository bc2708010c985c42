package main

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade/launcher"
	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	_ "cascadekv/internal/malloc" // one C arena
	"cascadekv/tiers/shm"
)

// exitMiss is the exit status besides those of package cli.
const exitMiss = 3

// errMiss ends a verb that found nothing.
var errMiss = errors.New("not cached")

func main() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ(), systemDir: config.SystemDir, shmDir: shm.DefaultDir, exec: syscall.Exec}
	os.Exit(a.run(cli.Interruptible(), os.Args[1:]))
}

// run executes one command line and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(helpOfOther(args))
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	var engine *launcher.Ended
	if errors.As(err, &engine) {
		return engine.Status // it has said itself why
	}
	if isConfig(err) {
		err = cli.AsUsage(err)
	}
	status := cli.Status(a.err, err)
	if errors.Is(err, errMiss) {
		return exitMiss
	}
	return status
}

func isConfig(err error) bool {
	return errors.Is(err, config.ErrUnknownKey) || errors.Is(err, config.ErrValue) || errors.Is(err, config.ErrSyntax)
}

// verbs is a verb that has others below it.
func verbs(name, short string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(below...)
	return c
}

func (a *app) root() *cobra.Command {
	root := cli.Root("cascade", "Look at, feed and check ranks of the CASCADE cache", &a.json)
	root.Long = "Look at, feed and check ranks of the CASCADE cache.\n\n" +
		"The rank is found as cascaded finds its own socket: " + config.Precedence + ".\n" +
		"Exit status: 0 success, 1 failure, 2 usage or configuration, 3 not cached."
	flags := root.PersistentFlags()
	flags.StringVar(&a.file, "config", "", "configuration file, as for cascaded")
	flags.StringVar(&a.socket, "socket", "", "unix socket of the rank, or its host:port (default: from the configuration)")
	cli.DurationVar(flags, &a.timeout, "timeout", defaultTimeout, "longest wait for the rank")
	root.AddCommand(a.statusCommand(), a.putCommand(), a.getCommand(), a.probeCommand(), a.ringCommand(), a.configCommand(),
		a.doctorCommand(), a.versionCommand(), a.traceTool().Command(), a.simCommand())
	root.AddCommand(a.otherCommands()...)
	root.AddCommand(a.campaignTool().Commands()...)
	root.AddCommand(a.engineConfigCommand(), a.upgradeCommand())
	root.AddCommand(a.arenaTool().Command(), a.listCommand(), a.keysCommand(), a.clearCommand(), a.whyCommand(), a.drainTool().Command(), a.launchTool().Command())
	return root
}
