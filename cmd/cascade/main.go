package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/config"
	_ "cascadekv/internal/malloc" // one C arena
	"cascadekv/tiers/shm"
)

// Exit statuses, as doc.go lists them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitMiss    = 3
)

// errMiss ends a verb that found nothing; it needs no words of its own.
var errMiss = errors.New("not cached")

// usageError is a mistake on the command line or in the configuration.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() {
	ctx := newInterruptible(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for sig := range signals {
			if ctx.signal(time.Now()) {
				endBy(sig)
			}
		}
	}()
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ(), systemDir: config.SystemDir, shmDir: shm.DefaultDir}
	os.Exit(a.run(ctx, os.Args[1:]))
}

// run executes one command line and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(a.err, "cascade: %s\n", strings.ReplaceAll(err.Error(), "\n", "\ncascade: "))
	var usage usageError
	switch {
	case errors.Is(err, errMiss):
		return exitMiss
	case errors.As(err, &usage), isConfig(err), strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	}
	return exitFailure
}

func isConfig(err error) bool {
	return errors.Is(err, config.ErrUnknownKey) || errors.Is(err, config.ErrValue) || errors.Is(err, config.ErrSyntax)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "cascade",
		Short: "Look at, feed and check ranks of the CASCADE cache",
		Long: "Look at, feed and check ranks of the CASCADE cache.\n\n" +
			"The rank is found as cascaded finds its own socket: " + config.Precedence + ".\n" +
			"Exit status: 0 success, 1 failure, 2 usage or configuration, 3 not cached.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	flags := root.PersistentFlags()
	flags.BoolVar(&a.json, "json", false, "print JSON on standard output")
	flags.StringVar(&a.file, "config", "", "configuration file, as for cascaded")
	flags.StringVar(&a.socket, "socket", "", "unix socket of the rank, or its host:port (default: from the configuration)")
	flags.DurationVar(&a.timeout, "timeout", defaultTimeout, "longest wait for the rank")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(a.statusCommand(), a.putCommand(), a.getCommand(), a.probeCommand(), a.ringCommand(), a.configCommand(),
		a.doctorCommand(), a.versionCommand(), a.traceCommand(), a.benchCommand(), a.simCommand(), a.lustreCommand())
	root.AddCommand(a.segmentsCommand(), a.fsckCommand(), a.exportCommand(), a.importCommand(), a.engineConfigCommand(), a.upgradeCommand())
	root.AddCommand(a.arenaCommand())
	return root
}

// arity refuses a wrong number of arguments as a usage error; most < 0 means
// any number.
func arity(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usagef("%s does not take %d arguments; usage: %s", cmd.CommandPath(), len(args), cmd.UseLine())
		}
		return nil
	}
}
