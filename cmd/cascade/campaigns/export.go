package campaigns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/buildinfo"
	"cascadekv/internal/cli"
	"cascadekv/internal/units"
	"cascadekv/lustre/campaign"
)

// exportFlags are those of cascade export.
type exportFlags struct {
	namespaces []string
	newer      string
	live       bool
	jobs       int
}

func (t *Tool) exportCommand() *cobra.Command {
	f := exportFlags{}
	c := &cobra.Command{
		Use:   "export DIR FILE.tar|-",
		Short: "Write a campaign, or a part of it, to one tar file or a pipe",
		Long: "Write a campaign, or a part of it, to one tar file or, with -, to standard output. Each block goes once; damaged\n" +
			"blocks stay behind. FILE must not exist. With - the summary goes to standard error.",
		Example: "  cascade export /scratch/me/kv - --live | ssh other cascade import - /scratch/me/kv",
		Args:    cli.Arity(2, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.export(cmd.Context(), args[0], args[1], f) },
	}
	flags := c.Flags()
	t.groupFlag(flags)
	flags.StringArrayVar(&f.namespaces, "namespace", nil, "only names of this namespace and their blocks; may be given again")
	flags.StringVar(&f.newer, "newer-than", "", "only names written since then and their blocks: a duration such as 36h or 7d, or a time such as 2026-01-31T12:00:00Z")
	flags.BoolVar(&f.live, "live", false, "only the newest record of each name and its block")
	flags.IntVar(&f.jobs, "jobs", 4, "segments looked at at once before the export begins")
	return c
}

// since reads --newer-than.
func (f exportFlags) since(now time.Time) (time.Time, error) {
	if f.newer == "" {
		return time.Time{}, nil
	}
	if d, err := units.ParseDuration(f.newer); err == nil {
		return now.Add(-d.Std()), nil
	}
	for _, form := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(form, f.newer, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, cli.Usagef("export: --newer-than %q is neither a duration (36h, 7d) nor a time (2026-01-31T12:00:00Z)", f.newer)
}

func (t *Tool) export(ctx context.Context, dir, file string, f exportFlags) error {
	since, err := f.since(time.Now())
	if err != nil {
		return err
	}
	if f.jobs <= 0 {
		return cli.Usagef("export: --jobs must be above 0")
	}
	what := campaign.ExportOptions{Namespaces: f.namespaces, NewerThan: since, Live: f.live, Program: "cascade " + buildinfo.Version()}
	o, finish := t.campaignOptions(dir, "export", f.jobs)
	defer finish()
	if file == "-" {
		if cli.IsTerminal(t.Out) {
			return cli.Usagef("export: standard output is a terminal; name a file, or pipe into cascade import - DIR")
		}
		x, err := campaign.Export(ctx, o, t.Out, what)
		if err != nil {
			return cannotRun(err)
		}
		finish()
		return (&Tool{Out: t.Err, JSON: t.JSON}).showExport(x)
	}
	var x *campaign.Exported
	err = newFile(file, func(w io.Writer) (err error) {
		x, err = campaign.Export(ctx, o, w, what)
		return err
	})
	if err != nil {
		return cannotRun(err)
	}
	finish()
	return t.showExport(x)
}

// newFile makes a file that must not exist, whole and durable or not at all.
func newFile(name string, write func(io.Writer) error) error {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return cli.Usagef("export: %s exists already; choose another name", name)
	}
	part := name + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	err = write(f)
	if err == nil {
		err = os.Rename(part, name) // before the first fsync, as on Lustre it must be
	}
	if err == nil {
		part = name
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

func (t *Tool) showExport(x *campaign.Exported) error {
	if *t.JSON {
		return cli.PrintJSON(t.Out, x)
	}
	for _, s := range x.LeftOut {
		fmt.Fprintf(t.Out, "left out: %s\n", s)
	}
	_, err := fmt.Fprintf(t.Out, "exported %d blocks and %d name records in %d segments, %s", x.Blocks, x.Names, x.Segments, cli.Human(x.Bytes))
	if x.Damaged > 0 {
		fmt.Fprintf(t.Out, "; %d damaged blocks stayed behind: cascade fsck says which", x.Damaged)
	}
	fmt.Fprintln(t.Out)
	return err
}
