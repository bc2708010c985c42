package campaigns

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/lustre/campaign"
	"cascadekv/lustre/segment/trust"
)

// Tool is what the verbs have from the program around them. Flags of that program are
// read when a verb runs. It is used by one goroutine.
type Tool struct {
	In       io.Reader
	Out, Err io.Writer
	JSON     *bool // whether to print JSON

	Config func() (*config.Loaded, error)

	group group // that shares the campaign
}

// Commands returns the verbs.
func (t *Tool) Commands() []*cobra.Command {
	return []*cobra.Command{t.lustreCommand(), t.segmentsCommand(), t.fsckCommand(), t.exportCommand(), t.importCommand()}
}

// group is the value of --group.
type group struct {
	text string
	id   int
}

// String implements pflag.Value.
func (g *group) String() string { return g.text }

// Type implements pflag.Value.
func (g *group) Type() string { return "group" }

// Set implements pflag.Value.
func (g *group) Set(text string) (err error) {
	g.text = text
	g.id, err = trust.GroupID(text)
	return err
}

// groupFlag adds --group to a verb on a campaign's directory.
func (t *Tool) groupFlag(flags *pflag.FlagSet) {
	flags.Var(&t.group, "group", "group, by name or number, that shares the campaign (lustre.group); what belongs to other users is not read")
}

// campaignOptions are what the verbs on a campaign's directory have in common,
// with a bar for bytes. The caller ends the bar with finish.
func (t *Tool) campaignOptions(dir, what string, jobs int) (o campaign.Options, finish func()) {
	bar := cli.Progress(t.Err, -1, what, true)
	var mu sync.Mutex
	known := int64(-1)
	o = campaign.Options{Dir: dir, Jobs: jobs, Group: uint32(t.group.id), Progress: func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if total != known && total > 0 {
			known = total
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done) // drawing is best effort
	}}
	return o, func() {
		mu.Lock()
		defer mu.Unlock()
		_ = bar.Finish() // likewise
	}
}

// printStrangers prints in one line how much belongs to others, and names some.
func (t *Tool) printStrangers(s campaign.Strangers) error {
	if s.Count == 0 {
		return nil
	}
	_, err := fmt.Fprintf(t.Out, "%d files or directories belong to others and are not read; the first: %s\n", s.Count, s.First[0])
	return err
}

// cannotRun makes a directory that is no campaign a usage error.
func cannotRun(err error) error {
	if errors.Is(err, campaign.ErrNoCampaign) {
		return cli.AsUsage(err)
	}
	return err
}
