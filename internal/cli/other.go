package cli

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Other is a program of this build that a verb becomes: with the same arguments, and so that its
// signals and exit status are this program's.
type Other struct {
	Program string
	Before  []string // arguments of it in front of those that were typed
	Without string   // what to do where it is missing, for the message
	Env     []string
	Exec    func(path string, args, env []string) error // replaces this program
}

// Part is Root of a program that a verb of cascade becomes. Its help calls it cascade with that verb.
func Part(program, verb, short string, json *bool) *cobra.Command {
	c := Root(program, short, json)
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "cascade " + verb}
	flags := c.PersistentFlags()
	for _, name := range []string{"config", "socket", "timeout"} { // flags of cascade, which mean nothing here
		flags.String(name, "", "")
		_ = flags.MarkHidden(name) // fails for unknown flags only
	}
	c.CompletionOptions.DisableDefaultCmd = true // cascade has it
	c.SetHelpCommand(&cobra.Command{Hidden: true})
	return c
}

// Command makes the verb, whose arguments are the other program's to judge.
func (o Other) Command(use, short string) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error { return o.become(use, args) }}
	c.SetHelpFunc(func(_ *cobra.Command, args []string) {
		if err := o.become(use, append(args, "--help")); err != nil {
			c.PrintErrln(err)
		}
	})
	c.ValidArgsFunction = o.complete
	return c
}

func (o Other) become(use string, args []string) error {
	path, err := Find(o.Program)
	if err != nil {
		return fmt.Errorf("%s: %s is neither beside this program nor in PATH (%w); %s", use, o.Program, err, o.Without)
	}
	if err := o.Exec(path, slices.Concat([]string{path}, o.Before, args), o.Env); err != nil {
		return fmt.Errorf("%s: start %s: %w", use, path, err)
	}
	return nil
}

// complete asks the program for completions, which it prints one a line, the last line being
// cobra's directive.
func (o Other) complete(_ *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
	path, err := Find(o.Program)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	out, err := exec.Command(path, slices.Concat([]string{"__complete"}, o.Before, args, []string{last})...).Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	most := len(lines) - 1
	directive, err2 := strconv.Atoi(strings.TrimPrefix(lines[most], ":"))
	if err != nil || err2 != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return lines[:most], cobra.ShellCompDirective(directive)
}
