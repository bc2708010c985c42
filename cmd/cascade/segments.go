package main

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

func (a *app) segmentsCommand() *cobra.Command {
	f := segmentsFlags{}
	c := &cobra.Command{
		Use:   "segments DIR",
		Short: "List the segments of a campaign: size, state, what is live in them",
		Long: "List the segments of a campaign: size, state, what is live in them. A block is live when the newest record of\n" +
			"some name points to it. Only metadata is read; fsck reads the blocks too.",
		Args: cli.Arity(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.segments(cmd.Context(), args[0], f) },
	}
	flags := c.Flags()
	a.groupFlag(flags)
	flags.Int64Var(&f.rank, "rank", -1, "only segments of this rank")
	flags.BoolVar(&f.long, "long", false, "also when it was made, frames, records, how much smaller its blocks are stored, and the layout on the file system")
	flags.BoolVar(&f.namespaces, "namespaces", false, "list the namespaces instead, with what is live of each; --json has both")
	flags.StringVar(&f.sort, "sort", "path", "path, size, dead (most dead bytes first) or created")
	flags.IntVar(&f.jobs, "jobs", 4, "segments read at once")
	return c
}

func (a *app) segments(ctx context.Context, dir string, f segmentsFlags) error {
	order, ok := segmentOrders[f.sort]
	if !ok {
		return cli.Usagef("segments: --sort %s: use path, size, dead or created", f.sort)
	}
	if f.jobs <= 0 {
		return cli.Usagef("segments: --jobs must be above 0")
	}
	o, finish := a.campaignOptions(dir, "segments", f.jobs)
	l, err := campaign.List(ctx, o, f.rank)
	finish()
	if err != nil {
		return cannotRun(err)
	}
	if order != nil {
		slices.SortStableFunc(l.Segments, order)
	}
	if a.json {
		return a.printJSON(l)
	}
	if f.namespaces {
		return a.segmentNamespaces(l)
	}
	rows := [][]string{{"SEGMENT", "STATE", "SIZE", "BLOCKS", "LIVE", "LIVE BYTES", "NAMES", "DEAD", "DAMAGE"}}
	if f.long {
		rows[0] = append(rows[0], "CREATED", "FRAMES", "RECORDS", "RATIO", "LAYOUT")
	}
	for _, s := range l.Segments {
		rows = append(rows, segmentRow(s, f.long))
	}
	if len(l.Segments) > 0 {
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return a.segmentTotals(l)
}

// segmentNamespaces lists what a campaign has of each namespace.
func (a *app) segmentNamespaces(l *campaign.Listing) error {
	rows := [][]string{{"NAMESPACE", "NAMES", "REFERENCED", "LAYOUT"}}
	for _, n := range l.Namespaces {
		rows = append(rows, []string{strconv.Quote(n.Name), strconv.Itoa(n.Names), human(n.BytesReferenced), layoutText(n.Layout)})
	}
	if len(l.Namespaces) > 0 {
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return a.segmentTotals(l)
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
		s.Path, state, human(s.Bytes), strconv.Itoa(s.Blocks), strconv.Itoa(s.LiveBlocks), human(s.LiveBytes), strconv.Itoa(s.LiveNames),
		share(uint64(s.Payload-s.LiveBytes), uint64(s.Payload)), damage,
	}
	if long {
		created := "-"
		if !s.Created.IsZero() {
			created = s.Created.Format(time.DateTime)
		}
		row = append(row, created, strconv.Itoa(s.Frames), strconv.Itoa(s.Names), times(s.BlockBytes, s.Payload), dash(s.Layout))
	}
	return row
}

func (a *app) segmentTotals(l *campaign.Listing) error {
	t := l.Totals
	if err := a.printStrangers(l.Refused); err != nil {
		return err
	}
	for _, r := range l.Runs {
		if r.Life == lease.LifeAlive {
			fmt.Fprintf(a.out, "%s is owned by a rank that lives: process %d on %s, which said so at %s\n", r.Path, r.Process, r.Host, r.Renewed.Format(time.DateTime))
		}
	}
	if t.DuplicateBytes > 0 {
		fmt.Fprintf(a.out, "%s are second copies of blocks\n", human(t.DuplicateBytes))
	}
	if t.Payload < t.BlockBytes {
		fmt.Fprintf(a.out, "blocks of %s are stored in %s (%s)\n", human(t.BlockBytes), human(t.Payload), times(t.BlockBytes, t.Payload))
	}
	_, err := fmt.Fprintf(a.out, "%d segments of %d incarnations of %d ranks in %s: %s, %d blocks with %s, of which %s live under %d names\n",
		t.Segments, t.Incarnations, t.Ranks, filepath.Clean(l.Dir), human(t.Bytes), t.Blocks, human(t.Payload), share(uint64(t.LiveBytes), uint64(t.Payload)), t.LiveNames)
	return err
}
