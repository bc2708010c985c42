package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/admin"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
	"cascadekv/tiers"
)

const watchPeriod = 2 * time.Second

// rankStats is the answer to CASCADE.STATS.
type rankStats struct {
	cascade.Stats
	UptimeSeconds float64        `json:"uptime_seconds"`
	Version       string         `json:"version"`
	Held          admin.Held     `json:"held"`
	Connections   int            `json:"connections"`
	InFlight      admin.InFlight `json:"in_flight"`
	Peers         *dht.Stats     `json:"peers"` // nil: the rank is alone

	ranks []dht.RankStatus // of the job, if it is not alone
}

func (a *app) statusCommand() *cobra.Command {
	var watch time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show what a rank holds and how often it hits",
		Args:  cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			interrupted := cmd.Context().Done()
			for {
				if err := a.status(client, watch > 0); err != nil || watch <= 0 {
					return err
				}
				select {
				case <-interrupted:
					return nil
				case <-time.After(watch):
				}
			}
		},
	}
	cli.DurationVar(c.Flags(), &watch, "watch", 0, "show it again after this time, until interrupted")
	c.Flags().Lookup("watch").NoOptDefVal = watchPeriod.String()
	return c
}

// status prints one snapshot.
func (a *app) status(client *resp.Client, again bool) error {
	text, stats, err := fetchStats(client)
	if err != nil {
		return err
	}
	if a.json {
		var compact bytes.Buffer
		if again {
			err = json.Compact(&compact, text)
		} else {
			err = json.Indent(&compact, text, "", "  ")
		}
		if err != nil {
			return fmt.Errorf("status: the rank's answer is not JSON: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", compact.Bytes())
		return err
	}
	if again && cli.IsTerminal(a.out) {
		fmt.Fprint(a.out, "\x1b[H\x1b[2J")
	}
	return a.printStats(stats)
}

// fetchStats asks a rank for its statistics; text is its own JSON.
func fetchStats(client *resp.Client) (text []byte, s rankStats, err error) {
	if text, err = ask(client, "status", &s, "CASCADE.STATS"); err != nil || s.Peers == nil {
		return text, s, err
	}
	if _, err := ask(client, "status", &s.ranks, "CASCADE.RANKS"); err != nil {
		return nil, s, err
	}
	// One object for readers of --json: the rank's answer, and "ranks".
	ranks, err := json.Marshal(s.ranks)
	if err != nil {
		return nil, s, fmt.Errorf("status: %w", err)
	}
	head := bytes.TrimSuffix(bytes.TrimSpace(text), []byte("}"))
	return append(append(append(head, `,"ranks":`...), ranks...), '}'), s, nil
}

// indexRow describes the catalogue of other ranks' and earlier jobs' segments.
func indexRow(c *tiers.CatalogueState) []string {
	if c.Broken != "" {
		return []string{"INDEX BROKEN", c.Broken}
	}
	return []string{"index", fmt.Sprintf("%d segments of %d parts of other ranks and jobs, %s on disk, T=%d K=%d", c.Segments, c.Parts, cli.Human(int64(c.DiskBytes)), c.SizeRatio, c.Runs)}
}

// jobRow adds up what the ranks of a job store, and under how many names.
func jobRow(ranks []dht.RankStatus) []string {
	var stored, referenced int64
	answered := 0
	for _, r := range ranks {
		var s cascade.Stats
		if len(r.Report) > 0 && json.Unmarshal(r.Report, &s) == nil {
			stored, referenced, answered = stored+s.OwnStored, referenced+s.OwnReferenced, answered+1
		}
	}
	return []string{"job", fmt.Sprintf("%s stored, %s referenced (%s) on the %d of %d ranks that answer", cli.Human(stored), cli.Human(referenced), cli.Times(referenced, stored), answered, len(ranks))}
}

func (a *app) printStats(s rankStats) error {
	up := time.Duration(s.UptimeSeconds) * time.Second
	rows := [][]string{
		{"version", s.Version + ", up " + up.String()},
		{"names", namesRow(s.Stats)},
		{"bytes", fmt.Sprintf("%s stored, %s referenced (%s)", cli.Human(s.BytesStored), cli.Human(s.BytesReferenced), cli.Times(s.BytesReferenced, s.BytesStored))},
		{"look-ups", fmt.Sprintf("%d, %d found (%s)", s.Lookups, s.Found, cli.Share(s.Found, s.Lookups))},
		{"gets", fmt.Sprintf("%d hits, %d misses (%s hit)", s.Hits, s.Misses, cli.Share(s.Hits, s.Hits+s.Misses))},
		{"puts", fmt.Sprintf("%d, of which %d duplicates, %d rejected", s.Puts, s.Duplicates, s.Rejected)},
		{"dirty", fmt.Sprintf("%d blocks, %s", s.DirtyBlocks, cli.Human(s.DirtyBytes))},
		{"ids pending", fmt.Sprintf("%d blocks, %s", s.PendingIDs, cli.Human(s.PendingBytes))},
		{"held", fmt.Sprintf("%d leases, %d views, %d pins, %d stages (%s of the arena)", s.Leases, s.Held.Views, s.Held.Pins, s.Held.Stages, cli.Human(s.Held.Bytes))},
		{"clients", fmt.Sprintf("%d connections, %d not authenticated; %s of replies not read, %s of values arriving", s.Connections, s.InFlight.Strange,
			cli.Human(s.InFlight.Bytes), cli.Human(s.InFlight.Transit))},
		{"engines", fmt.Sprintf("%d regions, %d jobs", s.Held.Regions, s.Held.Jobs)},
		{"recovered", fmt.Sprintf("%d blocks, %d names, %s", s.Recovered.Blocks, s.Recovered.Names, cli.Human(s.Recovered.Bytes))},
	}
	if sp := s.Spilled; sp.Files > 0 {
		rows = append(rows, []string{"spilled", fmt.Sprintf("%d more blocks, some %d names, in %d segments of %s that are in the index alone", sp.Blocks, sp.Names, sp.Files, cli.Human(sp.Bytes))})
	}
	if c := s.Catalogue; c != nil {
		rows = append(rows, indexRow(c))
	}
	if len(s.ranks) > 0 {
		rows = append(rows, jobRow(s.ranks))
	}
	if s.Lost+s.Corrupt > 0 {
		rows = append(rows, []string{"LOST", fmt.Sprintf("%d dirty blocks lost, %d corrupt blocks withdrawn: see the rank's log", s.Lost, s.Corrupt)})
	}
	if err := a.table(rows); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	if err := a.table(tierRows(s)); err != nil {
		return err
	}
	for _, t := range s.Tiers {
		if n := t.Usage.Missing; n > 0 {
			fmt.Fprintf(a.err, "cascade: %s has %s less than configured, and grows when there is room: %s\n", t.Name, cli.Human(n), t.Usage.Lacks)
		}
		if e := t.Encoded; e != nil && e.Stored < t.Usage.Payload {
			fmt.Fprintf(a.out, "%s keeps %s of blocks in %s (%s)\n", t.Name, cli.Human(t.Usage.Payload), cli.Human(e.Stored), cli.Times(t.Usage.Payload, e.Stored))
		}
		if m := t.Merged; m != nil && m.Merges > 0 {
			fmt.Fprintln(a.out, mergedLine(t.Name, m))
		}
		for _, c := range troubles(t) {
			fmt.Fprintf(a.err, "cascade: %s: %s: %s\n", c.Name, c.Detail, c.Remedy)
		}
	}
	if len(s.ranks) > 0 {
		fmt.Fprintln(a.out)
		if err := a.table(rankRows(s.ranks)); err != nil {
			return err
		}
	}
	if len(s.Namespaces) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	if err := a.namespaceTable(reports(s.Namespaces)); err != nil {
		return err
	}
	if v := judgeKeys(s); v.remedy != "" {
		fmt.Fprintf(a.err, "cascade: %s: %s\n", v.finding, v.remedy)
	}
	return nil
}

// namesRow is how many names a rank has.
func namesRow(s cascade.Stats) string {
	alone, estimate := 0, false
	for _, n := range s.Namespaces {
		alone, estimate = alone+n.Spilled, estimate || n.Estimate
	}
	if alone == 0 {
		return fmt.Sprintf("%d for %d blocks", s.Names, s.Blocks)
	}
	return fmt.Sprintf("%s: %d for %d blocks, and %s in segments alone", namesText(s.Names+alone, estimate), s.Names, s.Blocks, namesText(alone, estimate))
}

func tierRows(s rankStats) [][]string {
	rows := [][]string{{"TIER", "POLICY", "USED", "CAPACITY", "FULL", "BLOCKS", "HITS", "MISSES", "HIT BYTES", "PROMOTED", "DEMOTED", "EVICTED", "ERRORS"}}
	for _, t := range s.Tiers {
		capacity := cli.Human(t.Usage.Capacity)
		if t.Usage.Capacity == 0 {
			capacity = "unbounded"
		}
		rows = append(rows, []string{t.Name, cli.Dash(t.Policy), cli.Human(t.Usage.Used), capacity, cli.Share(uint64(t.Usage.Used), uint64(t.Usage.Capacity)),
			strconv.Itoa(t.Usage.Blocks), count(t.Hits), count(t.Misses), cli.Human(int64(t.HitBytes)), count(t.Promoted), count(t.Demoted), count(t.Evicted), count(t.Errors)})
	}
	return rows
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

// isMiss reports whether err is the absence of a value.
func isMiss(err error) bool { return errors.Is(err, resp.ErrNull) }
