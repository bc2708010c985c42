package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cascade"
	"cascadekv/internal/cli"
)

func (a *app) whyCommand() *cobra.Command {
	var namespace string
	c := &cobra.Command{
		Use:   "why KEY",
		Short: "Tell where the block of a key is, what leaves before it, and why it was missed",
		Long: "Tell where the block of a key is as the rank that is asked knows: in which of its levels and files, and on\n" +
			"which other ranks; what the eviction policy thinks of it and how much leaves each level before it; and why\n" +
			"the key was lost last, as far as that is remembered. It counts as no access. Exit status 3: it is nowhere.",
		Args: cli.Arity(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return a.why(namespace, args[0]) },
	}
	c.Flags().StringVar(&namespace, "namespace", redisNamespace, "namespace")
	return c
}

func (a *app) why(namespace, key string) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	var r cascade.KeyReport
	if _, err := ask(client, "why", &r, "CASCADE.WHY", namespace, key); err != nil {
		return err
	}
	err = a.show(r, func() error { return a.table(whyRows(namespace, key, r)) })
	if err == nil && r.State != cascade.NameReadable && r.State != cascade.NameElsewhere {
		err = fmt.Errorf("why: key %q: %w", key, errMiss)
	}
	return err
}

// states are what people read of the states of a name.
var states = map[string]string{
	cascade.NameReadable: "readable on this rank", cascade.NameElsewhere: "not in this rank's memory, but readable", cascade.NameEnded: "its time is over",
	cascade.NameHidden: "hidden: it is bound to a key that is not there", cascade.NameAbsent: "nowhere, as far as this rank knows",
}

func whyRows(namespace, key string, r cascade.KeyReport) [][]string {
	rows := [][]string{{"key", fmt.Sprintf("%q in %q: %s", key, namespace, states[r.State])}}
	if r.ID != "" {
		rows = append(rows, []string{"block", whyBlock(r)})
	}
	for _, l := range r.Levels {
		rows = append(rows, []string{l.Name, whyPlace(l)})
		if l.Class != "" {
			rows = append(rows, []string{"", whyClass(l)})
		}
		if l.Here && l.Policy != "" {
			rows = append(rows, []string{"", whyTurn(l)})
		}
	}
	for _, c := range r.Copies {
		var where []string
		if c.Memory {
			where = append(where, "memory")
		}
		if c.Segment != nil {
			where = append(where, whySegment(c.Segment))
		}
		owner := "catalogue"
		if c.Rank != nil {
			owner = c.Rank.String()
		}
		rows = append(rows, []string{owner, strings.Join(where, " and ")})
	}
	return append(rows, []string{"last loss", whyMiss(r.Miss)})
}

func whyBlock(r cascade.KeyReport) string {
	words := []string{r.ID, cli.Human(r.Bytes)}
	if r.Names > 0 {
		words = append(words, plural(strconv.Itoa(r.Names), "name"))
	}
	for _, w := range []struct {
		is   bool
		word string
	}{{r.Dirty, "dirty"}, {r.Leased, "leased"}, {r.Leads, "blocks after it are stored"}, {r.Generated, "of generated tokens"}} {
		if w.is {
			words = append(words, w.word)
		}
	}
	if r.Readers > 0 {
		words = append(words, plural(strconv.Itoa(r.Readers), "reader"))
	}
	return strings.Join(words, ", ")
}

// whyPlace says whether a block is in a level.
func whyPlace(l cascade.LevelReport) string {
	switch {
	case l.Segment != nil && l.Spilled:
		return "spilled to " + whySegment(l.Segment)
	case l.Segment != nil:
		return "written to " + whySegment(l.Segment)
	case l.Here:
		return "here"
	case l.Remembered:
		return "not here; its policy remembers it"
	}
	return "not here"
}

func whySegment(s *cascade.SegmentReport) string {
	return fmt.Sprintf("%s at byte %d", s.Path, s.Offset)
}

// whyClass is what the policy knows of a block.
func whyClass(l cascade.LevelReport) string {
	text := l.Policy + ": " + l.Class
	if l.IdleSeconds >= 0 {
		text += fmt.Sprintf("; last asked for or stored %v ago", time.Duration(l.IdleSeconds)*time.Second)
	}
	if l.Worth > 0 {
		text += fmt.Sprintf("; worth %.3g a second, hazard %.3g", l.Worth, l.Hazard)
	}
	return text
}

// whyTurn says when the policy gives a block up.
func whyTurn(l cascade.LevelReport) string {
	about := ""
	if l.Estimated {
		about = "about "
	}
	text := l.Policy + ": leaves next"
	if l.BeforeBlocks > 0 {
		text = fmt.Sprintf("%s: leaves after %s%s of %s", l.Policy, about, cli.Human(l.BeforeBytes), plural(strconv.FormatInt(l.BeforeBlocks, 10), "block"))
	}
	if l.Holds > 0 {
		text += fmt.Sprintf(", once %s on it ended", plural(strconv.Itoa(l.Holds), "hold"))
	}
	return text
}

// losses are what people read of reasons.
var losses = map[string]string{
	"":      "none",
	"never": "none: this rank has not had it since it started",
	"ended": "its time was over", "hidden": "the key that it is bound to is not there",
	"evicted": "evicted for want of room", "unwritten": "evicted, and not written: too few requests asked for it (store_threshold)",
	"generated": "evicted, and not written: it is of generated tokens (store_prompt_only)",
	"shed":      "evicted, and not written: the budget of writes was used up (max_write_bytes_per_second of lustre or nvme)",
	"forgotten": "forgotten for the bound on names (names_bytes)",
	"deleted":   "deleted by a client", "cleared": "its namespace was cleared", "replaced": "put later, or deleted, on another rank",
	"damaged": "its bytes failed their checksum", "gone": "whatever had its bytes has them no more",
	"refused": "a put of it found no room", "late": "it did not come in time", "no_room": "memory had no room to read it to",
	"unavailable": "it could not be read", "rank_dead": "only a rank that is dead had it",
}

func whyMiss(m cascade.MissReport) string {
	kept := time.Duration(m.KeptMS) * time.Millisecond
	if m.Reason == "unknown" {
		return fmt.Sprintf("not known: none in the last %v, and older ones are forgotten", kept.Round(time.Second))
	}
	text, ok := losses[m.Reason]
	if !ok {
		text = m.Reason
	}
	if m.Level != "" {
		text += ", in " + m.Level
	}
	if m.Rank != nil {
		text += fmt.Sprintf(": rank %d", *m.Rank)
	}
	if m.AgoMS > 0 {
		text += fmt.Sprintf(", %v ago", (time.Duration(m.AgoMS) * time.Millisecond).Round(100*time.Millisecond))
	}
	if m.Reason == "" && m.KeptMS > 0 {
		text += fmt.Sprintf(" in the last %v", kept.Round(time.Second))
	}
	return text
}
