package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit statuses of all programs.
const (
	OK      = 0
	Failure = 1
	Usage   = 2
)

// UsageError is a mistake on the command line or in the configuration.
type UsageError struct{ error }

// Unwrap returns what is wrong.
func (e UsageError) Unwrap() error { return e.error }

// AsUsage makes err a UsageError; nil stays nil.
func AsUsage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// Usagef makes a UsageError as fmt.Errorf does.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Root returns the command of a program, to which verbs are to be added. json has its
// flag --json, which all of them have.
func Root(use, short string, json *bool) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.PersistentFlags().BoolVar(json, "json", false, "print JSON on standard output")
	c.SetFlagErrorFunc(flagError)
	return c
}

// Run executes one command line and returns the exit status.
func Run(ctx context.Context, root *cobra.Command, args []string, out, err io.Writer) int {
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(err)
	return Status(err, root.ExecuteContext(ctx))
}

// Arity refuses a wrong number of arguments as a usage error; most < 0 means
// any number.
func Arity(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return Usagef("%s does not take %d arguments; usage: %s", cmd.CommandPath(), len(args), cmd.UseLine())
		}
		return nil
	}
}

// flagError makes mistakes in flags usage errors.
func flagError(cmd *cobra.Command, err error) error {
	return Usagef("%v; see %s --help", err, cmd.CommandPath())
}

// Status reports err on w, in lines that begin with "cascade: ", and returns the
// exit status: OK, Usage for a UsageError or an unknown verb, or else Failure.
func Status(w io.Writer, err error) int {
	if err == nil {
		return OK
	}
	fmt.Fprintf(w, "cascade: %s\n", strings.ReplaceAll(err.Error(), "\n", "\ncascade: "))
	var usage UsageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		return Usage
	}
	return Failure
}

// PrintJSON writes v on w.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Show writes v as JSON, or lets print write it for people.
func Show(w io.Writer, asJSON bool, v any, print func() error) error {
	if asJSON {
		return PrintJSON(w, v)
	}
	return print()
}

// PrintTable writes rows in columns on w; the first row is the head.
func PrintTable(w io.Writer, rows [][]string) error {
	columns := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	return columns.Flush()
}

// Progress returns a bar on w; it draws nothing unless that is a terminal. A
// negative total means unknown.
func Progress(w io.Writer, total int64, what string, bytes bool) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetVisibility(IsTerminal(w)),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish())
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Find returns the path of another program of this build: beside this program,
// or else in PATH. Errors: those of exec.LookPath.
func Find(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	return exec.LookPath(name)
}
