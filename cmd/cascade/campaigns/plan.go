package campaigns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/layout"
)

func (t *Tool) lustreCommand() *cobra.Command {
	var try bool
	plan := &cobra.Command{
		Use:   "plan",
		Short: "Print the lfs commands that the configuration comes to",
		Long: "Print the lfs commands that the striping keys of the configuration come to, and what is unwise about them.\n" +
			"With --try, make an empty file in lustre.dir with this layout, print what it was granted, and remove it;\n" +
			"exit status 1 when that is not what was asked for.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error { return t.lustrePlan(try) },
	}
	plan.Flags().BoolVar(&try, "try", false, "ask the file system for the layout and print what it grants")
	show := &cobra.Command{
		Use:   "show DIR",
		Short: "Print the layouts that the segments below DIR really have",
		Long: "Print the layouts that the segments below DIR, a lustre.dir or the directory of one rank, really have:\n" +
			"read from the file system, grouped, with the number of stripes on each OST.",
		Args: cli.Arity(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return t.lustreShow(args[0]) },
	}
	t.groupFlag(show.Flags())
	c := &cobra.Command{
		Use: "lustre", Short: "How segments lie on a Lustre file system", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(plan, show)
	return c
}

// LayoutOf is the layout of segments that the configuration asks for.
func LayoutOf(l *config.Loaded) (layout.Layout, error) {
	c := l.Lustre
	asked, err := layout.Settings{
		StripeCount: c.StripeCount, StripeSize: int64(c.StripeSize), Pool: c.Pool, Setstripe: c.Setstripe,
	}.Layout()
	if err != nil {
		return asked, l.Refuse("lustre.setstripe", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
	return asked, nil
}

// StripePlan is the result of lustre plan.
type StripePlan struct {
	Dir        string   `json:"dir"`
	FileSystem string   `json:"filesystem"`
	Lustre     bool     `json:"lustre"`
	Client     string   `json:"client,omitempty"`
	Layout     string   `json:"layout"`   // options of lfs setstripe; "": the directory's default
	Commands   []string `json:"commands"` // for all that is made below dir from now on
	Warnings   []string `json:"warnings"`
	Trial      *Trial   `json:"trial,omitempty"`
}

// Trial is what a file was granted.
type Trial struct {
	Granted     string   `json:"granted"`
	Differences []string `json:"differences"`
}

var errNotGranted = errors.New("lustre plan: the file system does not grant the layout as configured")

func (t *Tool) lustrePlan(try bool) error {
	loaded, err := t.Config()
	if err != nil {
		return err
	}
	asked, err := LayoutOf(loaded)
	if err != nil {
		return err
	}
	c := loaded.Lustre
	p := StripePlan{Dir: c.Dir, Layout: asked.Options(), Commands: []string{}, Warnings: []string{}}
	p.Warnings = append(p.Warnings, asked.Warnings(int64(c.SegmentBytes))...)
	dir := c.Dir
	if dir == "" {
		dir = "DIR"
		p.Warnings = append(p.Warnings, "lustre.dir is not set: there is no lustre tier")
	}
	if !asked.IsZero() {
		p.Commands = append(p.Commands, asked.Command(dir))
	}
	if err := p.look(c.Dir, try, asked); err != nil {
		return err
	}
	err = cli.Show(t.Out, *t.JSON, p, func() error { return t.printPlan(p) })
	if err == nil && p.Trial != nil && len(p.Trial.Differences) > 0 {
		return errNotGranted
	}
	return err
}

// look finds out about the file system, and with try what it grants.
func (p *StripePlan) look(dir string, try bool, asked layout.Layout) error {
	p.FileSystem = "unknown"
	if dir == "" {
		if try {
			return cli.Usagef("lustre plan --try: set lustre.dir, where to try")
		}
		return nil
	}
	i, err := layout.Detect(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !try:
		p.Warnings = append(p.Warnings, dir+" does not exist yet: cascaded makes it")
		return nil
	case err != nil:
		return fmt.Errorf("lustre plan: %w", err)
	}
	p.Lustre, p.Client, p.FileSystem = i.Lustre, i.Version, kindOf(i)
	if !i.Lustre && !asked.IsZero() {
		p.Warnings = append(p.Warnings, dir+" is on "+p.FileSystem+": the striping keys have no effect there")
	}
	if !try || !i.Lustre {
		return nil
	}
	if p.Trial, err = TryLayout(dir, asked); err != nil {
		return fmt.Errorf("lustre plan --try: %w", err)
	}
	return nil
}

// TryLayout does on a directory and a file of its own what a rank does.
func TryLayout(dir string, asked layout.Layout) (_ *Trial, err error) {
	own, err := os.MkdirTemp(dir, ".cascade-plan-")
	if err != nil {
		return nil, fmt.Errorf("%w; check owner, mode and quota of %s", err, dir)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(own)) }()
	t := &Trial{Differences: []string{}}
	striper, path := layout.NewStriper(asked, nil), filepath.Join(own, "file")
	striper.Prepare(own)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	t.Granted = striper.Describe(path)
	r, _ := striper.Last()
	if r.Err != nil {
		t.Differences = append(t.Differences, r.Err.Error())
	}
	for _, d := range r.Differences {
		t.Differences = append(t.Differences, d.String())
	}
	return t, nil
}

// kindOf is the file system in words.
func kindOf(i layout.Info) string {
	if i.Lustre {
		return strings.TrimSpace("Lustre " + i.Name)
	}
	if name := vfs.TypeName(i.Type); name != "" {
		return name
	}
	return fmt.Sprintf("file system 0x%08X", i.Type)
}

func (t *Tool) printPlan(p StripePlan) error {
	var b strings.Builder
	if p.Lustre {
		fmt.Fprintf(&b, "# %s is on %s, client %s\n", p.Dir, p.FileSystem, p.Client)
	}
	if p.Layout == "" {
		b.WriteString("# no striping key is set: segments get the layout that their directory gives new files\n")
	} else {
		b.WriteString("# each rank sets this on the directories that it makes; with the keys left empty,\n" +
			"# one command does it for every rank and job that starts from now on:\n")
	}
	for _, c := range p.Commands {
		fmt.Fprintln(&b, c)
	}
	if p.Trial != nil {
		fmt.Fprintf(&b, "# a file was granted: %s\n", cli.Dash(p.Trial.Granted))
		for _, d := range p.Trial.Differences {
			fmt.Fprintf(&b, "# not as asked for: %s\n", d)
		}
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(&b, "# note: %s\n", w)
	}
	_, err := fmt.Fprint(t.Out, b.String())
	return err
}
