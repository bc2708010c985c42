package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cascadekv/lustre/campaign"
	"cascadekv/lustre/layout"
)

// layoutGroup is the files that have one layout.
type layoutGroup struct {
	Layout string      `json:"layout"` // options of lfs setstripe
	Files  int         `json:"files"`
	OSTs   map[int]int `json:"osts"` // stripes on each
	First  string      `json:"first"`
}

// shownLayouts is the result of lustre show.
type shownLayouts struct {
	Dir        string        `json:"dir"`
	FileSystem string        `json:"filesystem"`
	Lustre     bool          `json:"lustre"`
	Client     string        `json:"client,omitempty"`
	Default    string        `json:"default"` // of dir; "": the file system's
	Files      int           `json:"files"`
	Groups     []layoutGroup `json:"groups"`
	Skipped    []string      `json:"skipped"` // files whose layout cannot be read, with the reason

	Refused campaign.Strangers `json:"refused"` // what belongs to others and is not read
}

func (a *app) lustreShow(dir string) error {
	i, err := layout.Detect(dir)
	if err != nil {
		return fmt.Errorf("lustre show: %w", err)
	}
	s := shownLayouts{Dir: dir, FileSystem: kindOf(i), Lustre: i.Lustre, Client: i.Version, Groups: []layoutGroup{}, Skipped: []string{}}
	if i.Lustre {
		if err := s.read(dir); err != nil {
			return fmt.Errorf("lustre show: %w", err)
		}
	}
	if s.Refused, err = campaign.FindStrangers(campaign.Options{Dir: dir, Group: uint32(a.group.id)}); err != nil && !errors.Is(err, campaign.ErrNoCampaign) {
		return fmt.Errorf("lustre show: %w", err)
	}
	return a.show(s, func() error { return errors.Join(a.printLayouts(s), a.printStrangers(s.Refused)) })
}

// read gathers the layouts of all segments below dir.
func (s *shownLayouts) read(dir string) error {
	if g, err := layout.Read(dir); err == nil {
		s.Default = g.Layout().Options()
	} else if !errors.Is(err, layout.ErrNoLayout) {
		return err
	}
	groups := map[string]*layoutGroup{}
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
	slices.SortFunc(s.Groups, func(x, y layoutGroup) int {
		return cmp.Or(cmp.Compare(y.Files, x.Files), strings.Compare(x.Layout, y.Layout))
	})
	return nil
}

// add counts one file. A file that has gone meanwhile is none.
func (s *shownLayouts) add(groups map[string]*layoutGroup, path string) {
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
		group = &layoutGroup{Layout: options, OSTs: map[int]int{}, First: path}
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

func (a *app) printLayouts(s shownLayouts) error {
	if !s.Lustre {
		_, err := fmt.Fprintf(a.out, "%s is on %s, not on a Lustre file system: its files have no stripes\n", s.Dir, s.FileSystem)
		return err
	}
	if _, err := fmt.Fprintf(a.out, "%s is on %s, client %s; default for new files: %s\n", s.Dir, s.FileSystem, s.Client, cmp.Or(s.Default, "the file system's")); err != nil {
		return err
	}
	if len(s.Groups) == 0 {
		_, err := fmt.Fprintln(a.out, "no segments")
		return errors.Join(err, a.printSkipped(s))
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
		rows = append(rows, []string{fmt.Sprint(g.Files), g.Layout, dash(strings.Join(osts, " ")), first})
	}
	return errors.Join(a.table(rows), a.printSkipped(s))
}

// printSkipped names files whose layout is unknown.
func (a *app) printSkipped(s shownLayouts) error {
	var err error
	for _, line := range s.Skipped {
		_, failed := fmt.Fprintln(a.err, "left out:", line)
		err = errors.Join(err, failed)
	}
	return err
}
