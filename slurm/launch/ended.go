package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A rank that ends before the ring is whole is one for which the others would be waited for in
// vain. srun says nothing that may be read, and goes on for the others; so Slurm runs a script
// after each rank, which leaves a file in the directory of the launch.
const (
	endedPrefix = "ended." // and the rank's number
	wholeName   = "whole"  // is there when nobody waits any more
	taskEpilog  = "#!/bin/sh\nd=${0%/*}\n[ -e \"$d/" + wholeName + "\" ] || : >\"$d/" + endedPrefix + "$SLURM_PROCID\"\n"

	// endedPeriod is how often these files are looked for: the directory may be in lustre.
	endedPeriod = time.Second
	// endedMargin is what srun takes to write how a rank ended.
	endedMargin = time.Second
)

func (p *Plan) taskEpilog() string { return filepath.Join(p.Dir, "rank-ended") }

// writeTaskEpilog writes the script, and removes what an earlier launch of the job left.
func (p *Plan) writeTaskEpilog() error {
	names, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	for _, e := range names {
		if strings.HasPrefix(e.Name(), endedPrefix) || e.Name() == wholeName {
			if err := os.Remove(filepath.Join(p.Dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return replace(p.taskEpilog(), taskEpilog, 0o700)
}

// gone lists the nodes whose ranks have ended before the ring was whole.
func (p *Plan) gone() (nodes []string) {
	names, err := os.ReadDir(p.Dir)
	if err != nil {
		return nil // they are waited for
	}
	var ranks []int
	for _, e := range names {
		text, found := strings.CutPrefix(e.Name(), endedPrefix)
		if n, err := strconv.Atoi(text); found && err == nil && n >= 0 && n < len(p.Place.Nodes) {
			ranks = append(ranks, n)
		}
	}
	slices.Sort(ranks)
	for _, n := range ranks {
		nodes = append(nodes, p.Place.Nodes[n])
	}
	return nodes
}

// whole notes that nobody waits for ranks any more.
func (p *Plan) whole() error {
	if err := os.WriteFile(filepath.Join(p.Dir, wholeName), nil, 0o600); err != nil {
		return fmt.Errorf("launch: %w", err)
	}
	return nil
}
