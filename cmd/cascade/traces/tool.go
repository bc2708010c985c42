package traces

import (
	"io"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/resp"
)

// Tool is what the verbs have from the program around them. Flags of that
// program are read when a verb runs. It is used by one goroutine.
type Tool struct {
	Out, Err io.Writer
	ShmDir   string  // of in-process arenas
	JSON     *bool   // whether to print JSON
	Socket   *string // the rank that was named, "" for that of the configuration

	Config  func() (*config.Loaded, error)
	Address func(*config.Config) (network, address string) // where the rank listens
	Dial    func() (*resp.Client, error)                   // the caller closes the client
	Refused func(verb string, err error) error             // explains what a rank's error means for the person at the keyboard
}

// Command returns the verb trace, with those below it.
func (t *Tool) Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "trace",
		Short: "Record, replay, summarise, make and convert prefix-hash traces",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(t.recordCommand(), t.replayCommand(), t.planCommand(), t.traceInfoCommand(), t.statsCommand(), t.synthCommand(),
		t.fromTextCommand(), t.sortCommand())
	return c
}

// show writes v as JSON, or lets print write it for people.
func (t *Tool) show(v any, print func() error) error {
	return cli.Show(t.Out, *t.JSON, v, print)
}

// progress returns a bar on standard error.
func (t *Tool) progress(total int64, what string, bytes bool) *progressbar.ProgressBar {
	return cli.Progress(t.Err, total, what, bytes)
}
