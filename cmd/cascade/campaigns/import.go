package campaigns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/lustre/campaign"
)

func (t *Tool) importCommand() *cobra.Command {
	var ids bool
	c := &cobra.Command{
		Use:   "import FILE.tar|- DIR",
		Short: "Add an exported campaign to a directory",
		Long: "Add an exported campaign, from a file or, with -, from standard input, to a directory, which is made if it is not\n" +
			"there. Every byte is verified before a segment is published; nothing is overwritten; ranks may run meanwhile and\n" +
			"see the new segments when they start next. Of a stream that is cut off the whole segments are kept.\n" +
			"Exit status 1 when anything of the stream was not taken.",
		Args: cli.Arity(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.importStream(cmd.Context(), args[0], args[1], ids)
		},
	}
	t.groupFlag(c.Flags())
	c.Flags().BoolVar(&ids, "ids", false, "compute the id of every block too: for streams from elsewhere; SHA-256, slower")
	return c
}

func (t *Tool) importStream(ctx context.Context, file, dir string, ids bool) error {
	in, size := t.In, int64(0)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return cli.AsUsage(fmt.Errorf("import: %w", err))
		}
		defer f.Close() // only read: its error does not matter
		if info, err := f.Stat(); err == nil {
			size = info.Size()
		}
		in = f
	}
	o, finish := t.campaignOptions(dir, "import", 0)
	got, err := campaign.Import(ctx, o, io.Reader(in), campaign.ImportOptions{IDs: ids, Size: size})
	finish()
	if err != nil && got.Segments == 0 && errors.Is(err, campaign.ErrNoCampaign) {
		return cannotRun(err)
	}
	if showErr := t.showImport(got); showErr != nil {
		return showErr
	}
	switch {
	case err != nil:
		return fmt.Errorf("import: %w; %d whole segments were kept", err, got.Segments)
	case len(got.Refused) > 0:
		return fmt.Errorf("import: %d damaged segments of the stream were not taken: export again", len(got.Refused))
	}
	return nil
}

func (t *Tool) showImport(got *campaign.Imported) error {
	if *t.JSON {
		return cli.PrintJSON(t.Out, got)
	}
	for _, s := range got.Refused {
		fmt.Fprintf(t.Out, "not taken: %s\n", s)
	}
	_, err := fmt.Fprintf(t.Out, "imported %d blocks and %d name records in %d segments of %d incarnations, %s\n",
		got.Blocks, got.Names, got.Segments, len(got.Into), cli.Human(got.Bytes))
	return err
}
