package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
)

// benchProgram has the instruments, so that this tool need not link them.
const benchProgram = "cascade-bench"

// benchCommand becomes cascade-bench with the same arguments, whose signals and
// exit status are then this program's.
func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure this machine against its own yardsticks", DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return a.runBench(args) }}
	c.SetHelpFunc(func(_ *cobra.Command, args []string) {
		if err := a.runBench(append(args, "--help")); err != nil {
			c.PrintErrln(err)
		}
	})
	c.ValidArgsFunction = completeBench
	return c
}

// helpOfBench makes "help bench VERB", of which the help command passes on no VERB, what
// cascade-bench understands.
func helpOfBench(args []string) []string {
	if len(args) > 2 && args[0] == "help" && args[1] == "bench" {
		return slices.Concat([]string{"bench"}, args[2:], []string{"--help"})
	}
	return args
}

// completeBench asks cascade-bench for completions, which it prints one a line,
// the last line being cobra's directive.
func completeBench(_ *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
	path, err := cli.Find(benchProgram)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	out, err := exec.Command(path, slices.Concat([]string{"__complete"}, args, []string{last})...).Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	most := len(lines) - 1
	directive, err2 := strconv.Atoi(strings.TrimPrefix(lines[most], ":"))
	if err != nil || err2 != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:most], cobra.ShellCompDirective(directive)
}

func (a *app) runBench(args []string) error {
	path, err := cli.Find(benchProgram)
	if err != nil {
		return fmt.Errorf("bench: %s is neither beside this program nor in PATH (%w); make build makes both, install them together", benchProgram, err)
	}
	if err := a.exec(path, slices.Concat([]string{path}, args), a.env); err != nil {
		return fmt.Errorf("bench: start %s: %w", path, err)
	}
	return nil
}
