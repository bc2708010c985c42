package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade/campaigns"
	"cascadekv/internal/cli"
	"cascadekv/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	var origin bool
	show := &cobra.Command{
		Use:   "show",
		Short: "Print every key with the value in effect, as TOML",
		Long:  "Print every key with the value in effect, as TOML.\nPrecedence: " + config.Precedence + ".",
		Args:  cli.Arity(0, 0),
		RunE:  func(*cobra.Command, []string) error { return a.configShow(origin) },
	}
	show.Flags().BoolVar(&origin, "origin", false, "print where each value came from")
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate one file by itself, or everything that is in effect",
		Args:  cli.Arity(0, 1),
		RunE:  func(_ *cobra.Command, args []string) error { return a.configCheck(args) },
	}
	return verbs("config", "Check and show the configuration", show, check)
}

// shownKey is one key of config show --json.
type shownKey struct {
	Value      any    `json:"value"`
	Origin     string `json:"origin"`
	Reloadable bool   `json:"reloadable"`
	Variable   string `json:"variable"`
}

func (a *app) configShow(origin bool) error {
	loaded, err := a.config()
	if err != nil {
		return err
	}
	a.warn(loaded.Warnings)
	if a.json {
		all := map[string]shownKey{}
		for _, k := range config.Keys() {
			all[k.Path] = shownKey{k.Value(&loaded.Config), loaded.Origin(k.Path), k.Reload, k.Env()}
		}
		return a.printJSON(all)
	}
	for _, k := range config.Keys() {
		line := k.Path + " = " + k.TOML(&loaded.Config)
		if origin {
			line = fmt.Sprintf("%-48s # %s", line, loaded.Origin(k.Path))
		}
		if _, err := fmt.Fprintln(a.out, line); err != nil {
			return err
		}
	}
	return nil
}

// warn prints what the configuration ignores on standard error.
func (a *app) warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintf(a.err, "cascade: warning: %s\n", w)
	}
}

func (a *app) configCheck(args []string) error {
	var loaded *config.Loaded
	var err error
	if len(args) == 1 {
		foreign := slices.DeleteFunc(slices.Clone(a.env), func(v string) bool { return strings.HasPrefix(v, config.EnvPrefix) })
		loaded, err = config.Load(config.Sources{File: args[0], Env: foreign})
	} else {
		loaded, err = a.config()
	}
	if err == nil {
		_, err = loaded.Password()
	}
	if err == nil {
		_, err = campaigns.LayoutOf(loaded)
	}
	if a.json {
		result := map[string]any{"ok": err == nil, "files": []string{}, "warnings": []string{}}
		if err != nil {
			result["error"] = err.Error()
		} else {
			result["files"] = append([]string{}, loaded.Files...)
			result["warnings"] = append([]string{}, loaded.Warnings...)
		}
		if printed := a.printJSON(result); printed != nil {
			return printed
		}
	}
	if err != nil {
		// A bad file is check's finding, not a mistake in calling it.
		return fmt.Errorf("configuration is not valid:\n%s", err)
	}
	if a.json {
		return nil
	}
	a.warn(loaded.Warnings)
	if len(loaded.Files) == 0 {
		_, err = fmt.Fprintln(a.out, "ok: no file, built-in values and environment")
		return err
	}
	for _, name := range loaded.Files {
		if _, err := fmt.Fprintf(a.out, "ok: %s\n", name); err != nil {
			return err
		}
	}
	return nil
}
