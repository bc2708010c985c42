package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/preflight"
	"cascadekv/tiers/shm"
)

func (a *app) arenaCommand() *cobra.Command {
	return verbs("arena", "List and remove arena files, the shared memory of ranks", a.arenaListCommand(), a.arenaRemoveCommand())
}

// arenaDirs are where arenas are looked for: what is named, or the usual place and
// that of the configuration.
func (a *app) arenaDirs(named []string) ([]string, error) {
	if len(named) > 0 {
		return named, nil
	}
	loaded, err := a.config()
	if err != nil {
		return nil, err
	}
	dirs := []string{a.shmDir}
	if dir := filepath.Dir(loaded.Shm.Path); dir != a.shmDir {
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// arenas lists the arena files of some directories. One that does not exist has
// none.
func (a *app) arenas(named []string) ([]shm.Arena, error) {
	dirs, err := a.arenaDirs(named)
	if err != nil {
		return nil, err
	}
	all := []shm.Arena{}
	for _, dir := range dirs {
		found, err := shm.List(dir)
		if err != nil && (len(named) > 0 || !errors.Is(err, os.ErrNotExist)) {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (a *app) arenaListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [DIR…]",
		Short: "List arena files: whose they are, the memory they take, what they hold, whether a rank uses them",
		Long: "List arena files: whose they are, the memory they take, what they hold, whether a rank uses them.\n" +
			"Without DIR: those in /dev/shm and where shm.path is. Files of other users that can not be read are\n" +
			"listed when they are called *.arena.",
		Args: cli.Arity(0, -1),
		RunE: func(_ *cobra.Command, dirs []string) error {
			found, err := a.arenas(dirs)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"arenas": found})
			}
			rows := [][]string{{"UID", "MEMORY", "OF", "BLOCKS", "NAMES", "STATE", "PATH"}}
			for _, f := range found {
				rows = append(rows, []string{strconv.Itoa(f.UID), cli.Human(f.Allocated), cli.Human(f.Size), known(f.Blocks), known(f.Names), string(f.State), f.Path})
			}
			return a.table(rows)
		},
	}
}

// known is a number that may be unknown.
func known(n int) string {
	if n < 0 {
		return "?"
	}
	return strconv.Itoa(n)
}

func (a *app) arenaRemoveCommand() *cobra.Command {
	var stale bool
	c := &cobra.Command{
		Use:   "rm PATH… | --stale [DIR…]",
		Short: "Remove arena files that no rank uses, with the blocks in them",
		Long: "Remove arena files that no rank uses, with the blocks in them. Nothing is asked: what a file holds that is\n" +
			"in no lustre directory is lost. A file that a rank uses is never removed.\n\n" +
			"--stale removes all of this user's that no rank uses, in /dev/shm and where shm.path is, or in each DIR.",
		Args: cli.Arity(0, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !stale && len(args) == 0 {
				return cli.Usagef("arena rm: name a file, or say --stale")
			}
			if stale {
				found, err := a.arenas(args)
				if err != nil {
					return err
				}
				args = nil
				for _, f := range slices.DeleteFunc(found, func(f shm.Arena) bool { return f.State != shm.Stale || f.UID != os.Geteuid() }) {
					args = append(args, f.Path)
				}
			}
			return a.removeArenas(args)
		},
	}
	c.Flags().BoolVar(&stale, "stale", false, "all of this user's arenas that no rank uses")
	return c
}

// removeArenas removes what it can, prints that, and returns why it could not
// remove the rest.
func (a *app) removeArenas(paths []string) error {
	removed := []shm.Arena{}
	var failed error
	for _, path := range paths {
		f, err := shm.Remove(path)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("arena rm: %w", err))
			continue
		}
		removed = append(removed, f)
		if !a.json {
			fmt.Fprintf(a.out, "removed %s: %s of memory, %s blocks\n", f.Path, cli.Human(f.Allocated), known(f.Blocks))
		}
	}
	if a.json {
		failed = errors.Join(a.printJSON(map[string]any{"removed": removed}), failed)
	}
	return failed
}

// checkSilent is for an address that nobody answers at: nil, unless a rank has the
// arena that one started here would have. Then to start one is no remedy.
func checkSilent(address, arena string) []check {
	f, err := shm.Look(arena)
	if err != nil || f.State != shm.Live {
		return nil
	}
	return []check{preflight.Failure("rank", "wait some seconds: a rank whose socket file was removed listens there again, and one that starts or ends takes a while; "+
		"then look at its log, and whether it was started with another --socket or stopped (kill -CONT)",
		"none answers at %s, but one runs: it has the arena %s", address, arena)}
}
