package campaigns

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/lustre/campaign"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/lease"
)

// segmentsFlags are those of cascade segments.
type segmentsFlags struct {
	rank       int64
	long       bool
	namespaces bool
	sort       string
	jobs       int
}

// segmentOrders are the orders of --sort; the default is that of
// readers.
var segmentOrders = map[string]func(a, b *campaign.Segment) int{
	"path":    nil,
	"size":    func(a, b *campaign.Segment) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"dead":    func(a, b *campaign.Segment) int { return cmp.Compare(b.Payload-b.LiveBytes, a.Payload-a.LiveBytes) },
	"created": func(a, b *campaign.Segment) int { return a.Created.Compare(b.Created) },
}

func (t *Tool) segmentsCommand() *cobra.Command {
	f := segmentsFlags{}
	c := &cobra.Command{
		Use:   "segments DIR",
		Short: "List the segments of a campaign: size, state, what is live in them",
		Long: "List the segments of a campaign: size, state, what is live in them. A block is live when the newest record of\n" +
			"some name points to it. Only metadata is read; fsck reads the blocks too.",
		Args: cli.Arity(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return t.segments(cmd.Context(), args[0], f) },
	}
	flags := c.Flags()
	t.groupFlag(flags)
	flags.Int64Var(&f.rank, "rank", -1, "only segments of this rank")
	flags.BoolVar(&f.long, "long", false, "also when it was made, frames, records, how much smaller its blocks are stored, and the layout on the file system")
	flags.BoolVar(&f.namespaces, "namespaces", false, "list the namespaces instead, with what is live of each; --json has both")
	flags.StringVar(&f.sort, "sort", "path", "path, size, dead (most dead bytes first) or created")
	flags.IntVar(&f.jobs, "jobs", 4, "segments read at once")
	return c
}

func (t *Tool) segments(ctx context.Context, dir string, f segmentsFlags) error {
	order, ok := segmentOrders[f.sort]
	if !ok {
		return cli.Usagef("segments: --sort %s: use path, size, dead or created", f.sort)
	}
	if f.jobs <= 0 {
		return cli.Usagef("segments: --jobs must be above 0")
	}
	o, finish := t.campaignOptions(dir, "segments", f.jobs)
	l, err := campaign.List(ctx, o, f.rank)
	finish()
	if err != nil {
		return cannotRun(err)
	}
	if order != nil {
		slices.SortStableFunc(l.Segments, order)
	}
	if *t.JSON {
		return cli.PrintJSON(t.Out, l)
	}
	if f.namespaces {
		return t.segmentNamespaces(l)
	}
	rows := [][]string{{"SEGMENT", "STATE", "SIZE", "BLOCKS", "LIVE", "LIVE BYTES", "NAMES", "DEAD", "DAMAGE"}}
	if f.long {
		rows[0] = append(rows[0], "CREATED", "FRAMES", "RECORDS", "RATIO", "LAYOUT")
	}
	for _, s := range l.Segments {
		rows = append(rows, segmentRow(s, f.long))
	}
	if len(l.Segments) > 0 {
		if err := cli.PrintTable(t.Out, rows); err != nil {
			return err
		}
	}
	return t.segmentTotals(l)
}

// segmentNamespaces lists what a campaign has of each namespace.
func (t *Tool) segmentNamespaces(l *campaign.Listing) error {
	rows := [][]string{{"NAMESPACE", "NAMES", "REFERENCED", "LAYOUT"}}
	for _, n := range l.Namespaces {
		rows = append(rows, []string{strconv.Quote(n.Name), strconv.Itoa(n.Names), cli.Human(n.BytesReferenced), cmp.Or(n.Layout, &block.Layout{}).String()})
	}
	if len(l.Namespaces) > 0 {
		if err := cli.PrintTable(t.Out, rows); err != nil {
			return err
		}
	}
	return t.segmentTotals(l)
}

func segmentRow(s *campaign.Segment, long bool) []string {
	state := string(s.State)
	switch {
	case s.Error != "":
		state = "unreadable"
	case s.Writer && s.State == segfile.StateOpen:
		state = "open, in use?"
	}
	damage := "-"
	switch {
	case s.Error != "":
		damage = s.Error
	case len(s.Damage) == 1:
		damage, _, _ = strings.Cut(s.Damage[0], ":")
	case len(s.Damage) > 1:
		first, _, _ := strings.Cut(s.Damage[0], ":")
		damage = fmt.Sprintf("%s and %d more", first, len(s.Damage)-1)
	}
	row := []string{
		s.Path, state, cli.Human(s.Bytes), strconv.Itoa(s.Blocks), strconv.Itoa(s.LiveBlocks), cli.Human(s.LiveBytes), strconv.Itoa(s.LiveNames),
		cli.Share(uint64(s.Payload-s.LiveBytes), uint64(s.Payload)), damage,
	}
	if long {
		created := "-"
		if !s.Created.IsZero() {
			created = s.Created.Format(time.DateTime)
		}
		row = append(row, created, strconv.Itoa(s.Frames), strconv.Itoa(s.Names), cli.Times(s.BlockBytes, s.Payload), cli.Dash(s.Layout))
	}
	return row
}

func (t *Tool) segmentTotals(l *campaign.Listing) error {
	sum := l.Totals
	if err := t.printStrangers(l.Refused); err != nil {
		return err
	}
	for _, r := range l.Runs {
		if r.Life == lease.LifeAlive {
			fmt.Fprintf(t.Out, "%s is owned by a rank that lives: process %d on %s, which said so at %s\n", r.Path, r.Process, r.Host, r.Renewed.Format(time.DateTime))
		}
	}
	if sum.DuplicateBytes > 0 {
		fmt.Fprintf(t.Out, "%s are second copies of blocks\n", cli.Human(sum.DuplicateBytes))
	}
	if sum.Payload < sum.BlockBytes {
		fmt.Fprintf(t.Out, "blocks of %s are stored in %s (%s)\n", cli.Human(sum.BlockBytes), cli.Human(sum.Payload), cli.Times(sum.BlockBytes, sum.Payload))
	}
	_, err := fmt.Fprintf(t.Out, "%d segments of %d incarnations of %d ranks in %s: %s, %d blocks with %s, of which %s live under %d names\n",
		sum.Segments, sum.Incarnations, sum.Ranks, filepath.Clean(l.Dir), cli.Human(sum.Bytes), sum.Blocks, cli.Human(sum.Payload), cli.Share(uint64(sum.LiveBytes), uint64(sum.Payload)), sum.LiveNames)
	return err
}
