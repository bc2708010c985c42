package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"cascadekv/cmd/cascade/campaigns"
	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/preflight"
	"cascadekv/internal/resp"
	"cascadekv/lustre/layout"
	"cascadekv/tiers"
	"cascadekv/tiers/shm"
)

// check is one question about the node or the rank with its answer.
type check = preflight.Check

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this node can run a rank as configured, and how the running one does",
		Long: "Check whether this node can run a rank as configured, and how the running one does.\n" +
			"Where cascade-gpu is beside this program and finds a driver, the GPUs are among the checks: which trigger of I/O works is\n" +
			"tried on each, for a second and with half a GiB of its memory.\n" +
			"Exit status 1 when a check fails; warnings do not count.",
		Args: cli.Arity(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	loaded, err := a.config()
	if err != nil {
		return err
	}
	var checks []check
	for _, w := range loaded.Warnings {
		checks = append(checks, preflight.Warning("configuration", "unset them, or correct their names", "%s", w))
	}
	client, err := a.dialWith(loaded)
	judged := loaded
	if err == nil {
		defer client.Close()
		var found check
		if judged, found = configOf(client, loaded); found.Name != "" {
			checks = append(checks, found)
		}
	}
	checks = append(checks, preflight.Here(a.env).All(&judged.Config)...)
	checks = append(checks, a.checkGPUs(ctx)...)
	if one := checkStripes(judged); one.Name != "" {
		checks = append(checks, one)
	}
	return a.report(append(checks, a.checkRank(loaded, client, err)...))
}

// configOf is the configuration that the node is judged by: that of the running rank, or
// one's own if the rank does not say.
func configOf(client *resp.Client, own *config.Loaded) (*config.Loaded, check) {
	const name = "configuration"
	texts := map[string]string{}
	reply, err := client.Do("CONFIG", "GET", "*")
	if err == nil {
		for at := 0; at+1 < len(reply.Elems); at += 2 {
			texts[string(reply.Elems[at].Str)] = string(reply.Elems[at+1].Str)
		}
	}
	if _, says := texts["shm.bytes"]; !says {
		return own, preflight.Warning(name, "upgrade the rank", "the running rank does not say its own: this one's is judged")
	}
	theirs, err := config.FromTexts(texts)
	if err != nil {
		return own, preflight.Warning(name, "use the cascade of the rank's version", "that of the running rank cannot be read, so this one's is judged: %v", err)
	}
	var differ []string
	for _, k := range config.Keys() {
		if k.Text(&theirs.Config) != k.Text(&own.Config) {
			differ = append(differ, k.Path)
		}
	}
	if len(differ) == 0 {
		return theirs, preflight.Okay(name, "that of the running rank, which is this one")
	}
	return theirs, preflight.Okay(name, "that of the running rank; a rank started here would have others of %s", strings.Join(differ, ", "))
}

// checkStripes looks which layout new segments are granted on Lustre.
func checkStripes(l *config.Loaded) check {
	const name = "stripes"
	if i, err := layout.Detect(l.Lustre.Dir); l.Lustre.Dir == "" || err != nil || !i.Lustre {
		return check{} // the check of lustre.dir has that
	}
	asked, err := campaigns.LayoutOf(l)
	if err != nil {
		return preflight.Failure(name, "cascade config check", "%v", err)
	}
	t, err := campaigns.TryLayout(l.Lustre.Dir, asked)
	switch {
	case err != nil:
		return preflight.Warning(name, "cascade lustre plan --try", "%v", err)
	case len(t.Differences) > 0:
		return preflight.Warning(name, "ask for what there is, or set it on the directory: cascade lustre plan", "granted %s: %s", t.Granted, strings.Join(t.Differences, "; "))
	}
	return preflight.Okay(name, "granted as asked for: %s", t.Granted)
}

// report prints the checks and fails when one of them did.
func (a *app) report(checks []check) error {
	failed := 0
	for _, c := range checks {
		if c.Verdict == preflight.Fail {
			failed++
		}
	}
	if a.json {
		if err := a.printJSON(map[string]any{"ok": failed == 0, "checks": checks}); err != nil {
			return err
		}
	} else {
		for _, c := range checks {
			fmt.Fprintf(a.out, "%-4s  %-14s  %s\n", c.Verdict, c.Name, c.Detail)
			if c.Remedy != "" {
				fmt.Fprintf(a.out, "%22s→ %s\n", "", c.Remedy)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("doctor: %d of %d checks failed", failed, len(checks))
	}
	return nil
}

// checkRank looks at the rank that runs here, if one does: err is why there is no client of it.
func (a *app) checkRank(loaded *config.Loaded, client *resp.Client, err error) []check {
	if errors.Is(err, resp.ErrForeignServer) {
		return []check{preflight.Failure("rank", "give the rank a socket in a directory that only its user can write to, as the default is: --socket", "%v", err)}
	}
	if none, is := errors.AsType[unreachable](err); is {
		_, address := a.address(&loaded.Config)
		if silent := checkSilent(address, loaded.Shm.Path); silent != nil {
			return silent
		}
		return []check{preflight.Warning("rank", none.remedy, "%s", none.finding)}
	}
	if err != nil {
		return []check{preflight.Failure("rank", "give the password that the rank was started with: password_file", "%v", err)}
	}
	_, s, err := fetchStats(client)
	if err != nil {
		return []check{preflight.Failure("rank", "is something else listening there?", "%v", err)}
	}
	checks := []check{preflight.Okay("rank", "answers: %d blocks, %d names, %s stored", s.Blocks, s.Names, cli.Human(s.BytesStored))}
	if v := judgeKeys(s); v.remedy != "" {
		checks = append(checks, preflight.Warning("hits", v.remedy, "%s", v.finding))
	} else {
		checks = append(checks, preflight.Okay("hits", "%s", v.finding))
	}
	checks = append(checks, checkPeers(s)...)
	if s.Lost+s.Corrupt > 0 {
		checks = append(checks, preflight.Warning("losses", "look for errors of the lustre tier in the rank's log",
			"%d dirty blocks lost, %d corrupt blocks withdrawn", s.Lost, s.Corrupt))
	}
	if c := s.Catalogue; c != nil {
		checks = append(checks, checkIndex(c))
	}
	for _, t := range s.Tiers {
		checks = append(checks, checkTier(t)...)
	}
	return checks
}

// checkIndex looks at the index of what other ranks and jobs left.
func checkIndex(c *tiers.CatalogueState) check {
	if c.Broken != "" {
		return preflight.Warning("index", "see that the disk under lustre.index has room and works; the rank begins the index anew by itself, and after some failures when it is restarted",
			"what other ranks and jobs left is not found: %s", c.Broken)
	}
	return preflight.Okay("index", "%d segments of %d parts of other ranks and jobs, %s on disk", c.Segments, c.Parts, cli.Human(int64(c.DiskBytes)))
}

// checkPeers looks at the rank's connection to the others.
func checkPeers(s rankStats) []check {
	if s.Peers == nil {
		return []check{preflight.Okay("peers", "the rank is alone: peers.fabric is off")}
	}
	fabric := s.Peers.Fabric
	if s.Peers.Link != "" {
		fabric += ", " + s.Peers.Link
	}
	checks := []check{preflight.Okay("fabric", "%s", fabric)}
	digests := map[uint64]bool{}
	var away []string
	for _, r := range s.ranks {
		if r.State != "alive" || r.Error != "" {
			away = append(away, fmt.Sprintf("%d (%s)", r.Rank, r.State))
		}
		var peer rankStats
		if json.Unmarshal(r.Report, &peer) == nil && peer.Peers != nil {
			digests[peer.Peers.RingDigest] = true
		}
	}
	switch {
	case len(s.ranks) == 1:
		checks = append(checks, preflight.Warning("peers", "check peers.seeds, the secret and the job's name on all ranks, and their logs", "no other rank is known"))
	case len(away) > 0:
		checks = append(checks, preflight.Warning("peers", "look at those ranks' logs and at the network between the nodes", "of %d ranks these do not answer: %s", len(s.ranks), strings.Join(away, ", ")))
	case len(digests) > 1:
		checks = append(checks, preflight.Warning("peers", "wait some seconds: ranks learn of changes by gossip", "the ranks do not agree on who is in the ring yet"))
	default:
		checks = append(checks, preflight.Okay("peers", "%d ranks, all answer", len(s.ranks)))
	}
	return checks
}

// checkSilent is for an address that nobody answers at: nil, unless a rank has the
// arena that one started here would have. Then to start one is no remedy.
func checkSilent(address, arena string) []check {
	f, err := shm.Look(arena)
	if err != nil || f.State != shm.Live {
		return nil
	}
	return []check{preflight.Failure("rank", "wait some seconds: a rank whose socket file was removed listens there again, and one that starts or ends takes a while; "+
		"then look at its log, and whether it was started with another --socket or stopped (kill -CONT)",
		"none answers at %s, but one runs: it has the arena %s", address, arena)}
}
