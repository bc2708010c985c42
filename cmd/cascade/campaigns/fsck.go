package campaigns

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/lustre/campaign"
)

// fsckFlags are those of cascade fsck.
type fsckFlags struct {
	verify                     string
	ids, repair, force, remove bool
	jobs                       int
}

func (t *Tool) fsckCommand() *cobra.Command {
	f := fsckFlags{}
	c := &cobra.Command{
		Use:   "fsck DIR",
		Short: "Check a campaign's segments, and repair them",
		Long: "Check a campaign's segments, and repair them. --verify headers reads what a starting rank reads; payloads reads\n" +
			"every byte. Repair copies what is intact of a damaged segment to a new one, then renames the damaged file to\n" +
			"*.damaged, which readers pass over. What may have a writer is only read: run repairs between jobs.\n" +
			"Exit status: 0 clean, 1 something was found (repaired or not, as printed), 2 wrong usage or not a directory.",
		Args: cli.Arity(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return t.fsck(cmd.Context(), args[0], f) },
	}
	flags := c.Flags()
	t.groupFlag(flags)
	flags.StringVar(&f.verify, "verify", "payloads", "headers or payloads")
	flags.BoolVar(&f.ids, "ids", false, "compute the id of every block too: SHA-256, slower")
	flags.BoolVar(&f.repair, "repair", false, "repair what can be repaired")
	flags.BoolVar(&f.force, "force", false, "with --repair: no rank runs on this campaign, so take also what changed in the last 24 hours")
	flags.BoolVar(&f.remove, "delete", false, "with --repair: remove damaged files and left-overs instead of keeping them aside")
	flags.IntVar(&f.jobs, "jobs", 4, "segments read at once")
	return c
}

func (f fsckFlags) check() error {
	switch {
	case f.verify != "headers" && f.verify != "payloads":
		return cli.Usagef("fsck: --verify %s: use headers or payloads", f.verify)
	case f.ids && f.verify == "headers":
		return cli.Usagef("fsck: --ids needs --verify payloads")
	case !f.repair && (f.force || f.remove):
		return cli.Usagef("fsck: --force and --delete go with --repair")
	case f.jobs <= 0:
		return cli.Usagef("fsck: --jobs must be above 0")
	}
	return nil
}

func (t *Tool) fsck(ctx context.Context, dir string, f fsckFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	o, finish := t.campaignOptions(dir, "fsck", f.jobs)
	r, err := campaign.Check(ctx, o, campaign.CheckOptions{Payloads: f.verify == "payloads", IDs: f.ids})
	finish()
	if err != nil {
		return cannotRun(err)
	}
	var failed error
	if f.repair {
		failed = campaign.Repair(ctx, r, campaign.RepairOptions{Force: f.force, Delete: f.remove})
	}
	if err := t.showFsck(r); err != nil {
		return err
	}
	switch {
	case failed != nil:
		return fmt.Errorf("fsck: %w; %s", failed, r.Summary())
	case r.Clean:
		return nil
	case !f.repair:
		return fmt.Errorf("fsck: %s; --repair puts right what can be", r.Summary())
	}
	return fmt.Errorf("fsck: %s", r.Summary())
}

func (t *Tool) showFsck(r *campaign.Report) error {
	if *t.JSON {
		return cli.PrintJSON(t.Out, r)
	}
	for _, f := range r.Findings {
		place := f.File
		if f.Offset >= 0 {
			place = fmt.Sprintf("%s at %d", f.File, f.Offset)
		}
		fmt.Fprintf(t.Out, "%s: %s: %s: %s\n", f.Severity, place, f.Kind, f.What)
		switch {
		case f.Repaired:
			fmt.Fprintf(t.Out, "%9s→ repaired\n", "")
		case f.Remedy != "":
			fmt.Fprintf(t.Out, "%9s→ %s\n", "", f.Remedy)
		}
	}
	for _, s := range r.Repairs {
		if s.Skipped != "" {
			fmt.Fprintf(t.Out, "%s: left as it is: %s\n", s.File, s.Skipped)
			continue
		}
		fmt.Fprintf(t.Out, "%s: kept %d blocks and %d names, lost %d blocks", s.File, s.Blocks, s.Names, s.BlocksLost)
		for _, into := range s.Into {
			fmt.Fprintf(t.Out, "; now in %s", into)
		}
		if s.Deleted {
			fmt.Fprint(t.Out, "; removed")
		} else if s.Aside != "" {
			fmt.Fprintf(t.Out, "; moved aside as %s", s.Aside)
		}
		fmt.Fprintln(t.Out)
	}
	if r.NoID > 0 {
		fmt.Fprintf(t.Out, "ids of %d blocks with unknown codecs were not computed, their checksums were\n", r.NoID)
	}
	state := "clean"
	if !r.Clean {
		state = r.Summary()
	}
	_, err := fmt.Fprintf(t.Out, "%s: %d segments, %s, %d blocks, %d live names checked (%s): %s\n",
		r.Dir, r.Totals.Segments, cli.Human(r.Totals.Bytes), r.Totals.Blocks, r.Totals.LiveNames, r.Verify, state)
	return err
}
