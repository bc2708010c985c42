package campaigns

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cascadekv/internal/cli"
	"cascadekv/lustre/campaign"
	"cascadekv/lustre/layout"
)

// LayoutGroup is the files that have one layout.
type LayoutGroup struct {
	Layout string      `json:"layout"` // options of lfs setstripe
	Files  int         `json:"files"`
	OSTs   map[int]int `json:"osts"` // stripes on each
	First  string      `json:"first"`
}

// Layouts is the result of lustre show.
type Layouts struct {
	Dir        string        `json:"dir"`
	FileSystem string        `json:"filesystem"`
	Lustre     bool          `json:"lustre"`
	Client     string        `json:"client,omitempty"`
	Default    string        `json:"default"` // of dir; "": the file system's
	Files      int           `json:"files"`
	Groups     []LayoutGroup `json:"groups"`
	Skipped    []string      `json:"skipped"` // files whose layout cannot be read, with the reason

	Refused campaign.Strangers `json:"refused"` // what belongs to others and is not read
}

func (t *Tool) lustreShow(dir string) error {
	i, err := layout.Detect(dir)
	if err != nil {
		return fmt.Errorf("lustre show: %w", err)
	}
	s := Layouts{Dir: dir, FileSystem: kindOf(i), Lustre: i.Lustre, Client: i.Version, Groups: []LayoutGroup{}, Skipped: []string{}}
	if i.Lustre {
		if err := s.read(dir); err != nil {
			return fmt.Errorf("lustre show: %w", err)
		}
	}
	if s.Refused, err = campaign.FindStrangers(campaign.Options{Dir: dir, Group: uint32(t.group.id)}); err != nil && !errors.Is(err, campaign.ErrNoCampaign) {
		return fmt.Errorf("lustre show: %w", err)
	}
	return cli.Show(t.Out, *t.JSON, s, func() error { return errors.Join(t.printLayouts(s), t.printStrangers(s.Refused)) })
}

// read gathers the layouts of all segments below dir.
func (s *Layouts) read(dir string) error {
	if g, err := layout.Read(dir); err == nil {
		s.Default = g.Layout().Options()
	} else if !errors.Is(err, layout.ErrNoLayout) {
		return err
	}
	groups := map[string]*LayoutGroup{}
	for _, pattern := range []string{"agg_rank*.bin", "rank*-*/agg_rank*.bin"} {
		files, err := filepath.Glob(filepath.Join(quoteGlob(dir), pattern))
		if err != nil {
			return err
		}
		for _, path := range files {
			s.add(groups, path)
		}
	}
	for _, g := range groups {
		s.Groups = append(s.Groups, *g)
	}
	slices.SortFunc(s.Groups, func(x, y LayoutGroup) int {
		return cmp.Or(cmp.Compare(y.Files, x.Files), strings.Compare(x.Layout, y.Layout))
	})
	return nil
}

// add counts one file. A file that has gone meanwhile is none.
func (s *Layouts) add(groups map[string]*LayoutGroup, path string) {
	g, err := layout.Read(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return
	case errors.Is(err, layout.ErrNoLayout):
		err = errors.New("no objects yet")
	}
	s.Files++
	if err != nil {
		s.Skipped = append(s.Skipped, path+": "+err.Error())
		return
	}
	options := g.Layout().Options()
	group := groups[options]
	if group == nil {
		group = &LayoutGroup{Layout: options, OSTs: map[int]int{}, First: path}
		groups[options] = group
	}
	group.Files++
	for _, p := range g.Parts {
		for _, ost := range p.OSTs() {
			group.OSTs[ost]++
		}
	}
}

// quoteGlob makes a pattern that matches path alone.
func quoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

func (t *Tool) printLayouts(s Layouts) error {
	if !s.Lustre {
		_, err := fmt.Fprintf(t.Out, "%s is on %s, not on a Lustre file system: its files have no stripes\n", s.Dir, s.FileSystem)
		return err
	}
	if _, err := fmt.Fprintf(t.Out, "%s is on %s, client %s; default for new files: %s\n", s.Dir, s.FileSystem, s.Client, cmp.Or(s.Default, "the file system's")); err != nil {
		return err
	}
	if len(s.Groups) == 0 {
		_, err := fmt.Fprintln(t.Out, "no segments")
		return errors.Join(err, t.printSkipped(s))
	}
	rows := [][]string{{"FILES", "LAYOUT", "STRIPES ON OST", "FIRST FILE"}}
	for _, g := range s.Groups {
		var osts []string
		for _, ost := range slices.Sorted(maps.Keys(g.OSTs)) {
			osts = append(osts, fmt.Sprintf("%d:%d", ost, g.OSTs[ost]))
		}
		first, err := filepath.Rel(s.Dir, g.First)
		if err != nil {
			first = g.First
		}
		rows = append(rows, []string{fmt.Sprint(g.Files), g.Layout, cli.Dash(strings.Join(osts, " ")), first})
	}
	return errors.Join(cli.PrintTable(t.Out, rows), t.printSkipped(s))
}

// printSkipped names files whose layout is unknown.
func (t *Tool) printSkipped(s Layouts) error {
	var err error
	for _, line := range s.Skipped {
		_, failed := fmt.Fprintln(t.Err, "left out:", line)
		err = errors.Join(err, failed)
	}
	return err
}
