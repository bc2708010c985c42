package arenas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/slurm/epilog"
	"cascadekv/slurm/notes"
	"cascadekv/tiers/shm"
)

// Tool is what the verb has from the program around it.
type Tool struct {
	Out    io.Writer
	JSON   *bool
	ShmDir string                         // where arenas are by default
	Config func() (*config.Loaded, error) // of a rank started here
}

// Command returns the verb arena.
func (t *Tool) Command() *cobra.Command {
	c := &cobra.Command{
		Use: "arena", Short: "List and remove arena files, the shared memory of ranks", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(t.listCommand(), t.removeCommand())
	return c
}

// arenaDirs are where arenas are looked for: what is named, or the usual place and
// that of the configuration.
func (t *Tool) arenaDirs(named []string) ([]string, error) {
	if len(named) > 0 {
		return named, nil
	}
	loaded, err := t.Config()
	if err != nil {
		return nil, err
	}
	dirs := []string{t.ShmDir}
	if dir := filepath.Dir(loaded.Shm.Path); dir != t.ShmDir {
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// arenas lists the arena files of some directories. One that does not exist has
// none.
func (t *Tool) arenas(named []string) ([]shm.Arena, error) {
	dirs, err := t.arenaDirs(named)
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

func (t *Tool) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [DIR…]",
		Short: "List arena files: whose they are, the memory they take, what they hold, whether a rank uses them",
		Long: "List arena files: whose they are, the memory they take, what they hold, whether a rank uses them.\n" +
			"Without DIR: those in /dev/shm and where shm.path is. Files of other users that can not be read are\n" +
			"listed when they are called *.arena.",
		Args: cli.Arity(0, -1),
		RunE: func(_ *cobra.Command, dirs []string) error {
			found, err := t.arenas(dirs)
			if err != nil {
				return err
			}
			if *t.JSON {
				return cli.PrintJSON(t.Out, map[string]any{"arenas": found})
			}
			rows := [][]string{{"UID", "MEMORY", "OF", "BLOCKS", "NAMES", "STATE", "PATH"}}
			for _, f := range found {
				rows = append(rows, []string{strconv.Itoa(f.UID), cli.Human(f.Allocated), cli.Human(f.Size), known(f.Blocks), known(f.Names), string(f.State), f.Path})
			}
			return cli.PrintTable(t.Out, rows)
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

func (t *Tool) removeCommand() *cobra.Command {
	var stale bool
	var over epilog.Job
	var wait time.Duration
	c := &cobra.Command{
		Use:   "rm PATH… | --stale [DIR…] | --job ID [DIR…]",
		Short: "Remove arena files that no rank uses, with the blocks in them",
		Long: "Remove arena files that no rank uses, with the blocks in them. Nothing is asked: what a file holds that is\n" +
			"in no lustre directory is lost. A file that a rank uses is never removed.\n\n" +
			"--stale removes all of this user's that no rank uses, in /dev/shm and where shm.path is, or in each DIR.\n" +
			"--job is for the epilog of a Slurm job, and for root with --user: it kills the ranks of that job on this\n" +
			"node, those in use too, and removes their arenas in /dev/shm, or in each DIR, their sockets, and the\n" +
			"directory with the secret of a launcher that was killed. It reads no configuration.",
		Args: cli.Arity(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("job"):
				if stale || over.ID <= 0 || over.UID < 0 {
					return cli.Usagef("arena rm: --job takes the number of a Slurm job, and no --stale; --user a number")
				}
				over.Dirs = args
				return t.removeJob(cmd.Context(), over, wait)
			case cmd.Flags().Changed("user"), cmd.Flags().Changed("drain"):
				return cli.Usagef("arena rm: --user and --drain go with --job")
			case !stale && len(args) == 0:
				return cli.Usagef("arena rm: name a file, or say --stale")
			}
			if stale {
				found, err := t.arenas(args)
				if err != nil {
					return err
				}
				args = nil
				for _, f := range slices.DeleteFunc(found, func(f shm.Arena) bool { return f.State != shm.Stale || f.UID != os.Geteuid() }) {
					args = append(args, f.Path)
				}
			}
			return t.remove(args)
		},
	}
	c.Flags().BoolVar(&stale, "stale", false, "all of this user's arenas that no rank uses")
	c.Flags().IntVar(&over.ID, "job", 0, "what a Slurm job left on this node that is over: ranks and arenas")
	c.Flags().IntVar(&over.UID, "user", os.Geteuid(), "the number of the user whose job it was")
	cli.DurationVar(c.Flags(), &over.Drain, "drain", 0, "how long ranks of --job that live may take to write to lustre what only they have, before they are killed")
	cli.DurationVar(c.Flags(), &wait, "wait", 10*time.Second, "how long killed ranks of --job may take to be gone")
	return c
}

// removeJob removes what a job left, and returns why it could not remove the rest.
func (t *Tool) removeJob(ctx context.Context, over epilog.Job, wait time.Duration) error {
	if len(over.Dirs) == 0 {
		over.Dirs = []string{t.ShmDir}
	}
	over.Notes = notes.Dir(over.UID)
	ctx, cancel := context.WithTimeout(ctx, over.Drain+wait)
	defer cancel()
	done, err := epilog.Clean(ctx, over)
	if err != nil {
		err = fmt.Errorf("arena rm: %w", err)
	}
	if *t.JSON {
		return errors.Join(cli.PrintJSON(t.Out, done), err)
	}
	for _, pid := range done.Killed {
		fmt.Fprintf(t.Out, "killed process %d, a rank of job %d\n", pid, over.ID)
	}
	for _, f := range done.Arenas {
		fmt.Fprintf(t.Out, "removed %s: %s of memory\n", f.Path, cli.Human(f.Allocated))
	}
	for _, path := range done.Paths {
		fmt.Fprintf(t.Out, "removed %s\n", path)
	}
	return err
}

// remove removes what it can, prints that, and returns why it could not
// remove the rest.
func (t *Tool) remove(paths []string) error {
	removed := []shm.Arena{}
	var failed error
	for _, path := range paths {
		f, err := shm.Remove(path)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("arena rm: %w", err))
			continue
		}
		removed = append(removed, f)
		if !*t.JSON {
			fmt.Fprintf(t.Out, "removed %s: %s of memory, %s blocks\n", f.Path, cli.Human(f.Allocated), known(f.Blocks))
		}
	}
	if *t.JSON {
		failed = errors.Join(cli.PrintJSON(t.Out, map[string]any{"removed": removed}), failed)
	}
	return failed
}
