package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cascadekv/cascade"
	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/internal/glob"
	"cascadekv/internal/resp"
)

// namespaceReport is one namespace as status, list and clear show it, and with
// --json as they print it: what all ranks of the job count of it.
type namespaceReport struct {
	cascade.NamespaceStats
	Model string `json:"model,omitempty"` // as far as the name of the namespace has it
}

// chosen picks namespaces by their names, by the model that these have, or by both.
type chosen struct {
	pattern string // a namespace, or a pattern as of SCAN
	model   string
	given   *pflag.FlagSet // whether the pattern is: "" is a namespace as well. nil: unless it is ""
}

func (c *chosen) flags(f *pflag.FlagSet) {
	f.StringVar(&c.pattern, "namespace", "", "a namespace, or a pattern of them with *, ? and [sets]")
	c.given = f
	f.StringVar(&c.model, "model", "", "namespaces of this model: its whole name, or the last part of it")
}

// of returns those of all namespaces that are chosen, by name. One that is named
// exactly is the only one, whatever patterns it would be.
func (c *chosen) of(all []cascade.NamespaceStats) ([]namespaceReport, error) {
	named := c.pattern != "" || c.given != nil && c.given.Changed("namespace")
	text := "*"
	if named {
		text = c.pattern
	}
	pattern, ok := glob.Compile(text)
	if !ok {
		return nil, cli.Usagef("--namespace has more than %d bytes", glob.MaxPattern)
	}
	exact := named && slices.ContainsFunc(all, func(n cascade.NamespaceStats) bool { return n.Name == c.pattern })
	return slices.DeleteFunc(reports(all), func(r namespaceReport) bool {
		is := named && r.Name == c.pattern || !exact && pattern.Match(r.Name)
		return !is || c.model != "" && r.Model != c.model && path.Base(r.Model) != c.model
	}), nil
}

func reports(all []cascade.NamespaceStats) []namespaceReport {
	out := make([]namespaceReport, len(all))
	for i, n := range all {
		out[i] = namespaceReport{n, modelOf(n.Name)}
	}
	return out
}

// hexOfNamespace is how many hex digits of SHA-256 end a namespace as
// docs/format.md §3 has it.
const hexOfNamespace = 32

// modelOf returns the model that the name of a namespace has: of those that clients
// of engines make, and of those of docs/format.md §3; "" of others.
func modelOf(ns string) string {
	if of := fields(ns); of != nil {
		return of["model"]
	}
	at := len(ns) - hexOfNamespace - 1
	if at <= 0 || ns[at] != '-' || strings.Trim(ns[at+1:], "0123456789abcdef") != "" {
		return ""
	}
	return ns[:at]
}

// namespaceTable prints namespaces for people.
func (a *app) namespaceTable(all []namespaceReport) error {
	rows := [][]string{{"NAMESPACE", "NAMES", "REFERENCED", "PUTS", "LOOKED UP", "FOUND", "HITS", "MISSES", "HIT", "LAYOUT"}}
	for _, n := range all {
		rows = append(rows, []string{strconv.Quote(n.Name), namesText(n.Names+n.Spilled, n.Estimate), cli.Human(n.BytesReferenced + n.SpilledBytes), count(n.Puts),
			count(n.Lookups), cli.Share(n.Found, n.Lookups), count(n.Hits), count(n.Misses), cli.Share(n.Hits, n.Hits+n.Misses), cmp.Or(n.Layout, &block.Layout{}).String()})
	}
	return a.table(rows)
}

// plural is a number of things for people.
func plural(n, thing string) string {
	if n == "1" {
		return n + " " + thing
	}
	return n + " " + thing + "s"
}

// namesText is a number of names for people.
func namesText(n int, estimate bool) string {
	if estimate {
		return "about " + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}

// namespaces asks the rank for those that are chosen.
func (a *app) namespaces(client *resp.Client, c chosen) ([]namespaceReport, error) {
	_, stats, err := fetchStats(client)
	if err != nil {
		return nil, err
	}
	return c.of(everywhere(stats))
}

func (a *app) listCommand() *cobra.Command {
	var c chosen
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the namespaces that a job's ranks hold: names, bytes, hits",
		Long: "List the namespaces that a job's ranks hold: names, bytes they refer to, and how often they were put, looked for\n" +
			"and found. A namespace is what engines share blocks in: mostly a model in one layout. Names that only a rank's own\n" +
			"segments have count as well: \"about\" where they are many and were estimated. What only earlier jobs left is not\n" +
			"listed: cascade segments --namespaces DIR reads all of the lustre directory. Exit status 3: there is none of these.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error { return a.list(c) },
	}
	c.flags(cmd.Flags())
	return cmd
}

func (a *app) list(c chosen) error {
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	all, err := a.namespaces(client, c)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(map[string]any{"namespaces": all})
	} else if len(all) > 0 {
		err = a.namespaceTable(all)
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("list: a namespace that was asked for: %w", errMiss)
	}
	return err
}

// keysFlags are those of cascade keys.
type keysFlags struct {
	namespace, match string
	limit            int
}

// keysAtOnce is how many names a rank looks at for one answer.
const keysAtOnce = 1000

func (a *app) keysCommand() *cobra.Command {
	var f keysFlags
	c := &cobra.Command{
		Use:   "keys",
		Short: "List the keys of a namespace that this node's rank holds",
		Long: "List the keys of a namespace that this node's rank holds, in memory and in its own segments, one a line and in no\n" +
			"order. A key that is no plain text is quoted as in Go, with --json too. Exit status 3: none.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error { return a.keys(f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.namespace, "namespace", redisNamespace, "namespace")
	flags.StringVar(&f.match, "match", "", "only keys of this pattern, with *, ? and [sets]")
	flags.IntVar(&f.limit, "limit", 0, "at most so many; 0: all")
	return c
}

func (a *app) keys(f keysFlags) error {
	if f.limit < 0 {
		return cli.Usagef("keys: --limit %d is negative", f.limit)
	}
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	found := 0
	all := []string{} // of --json
	err = eachKey(client, f, func(key string) error {
		found++
		if a.json {
			all = append(all, plainKey(key))
			return nil
		}
		_, err := fmt.Fprintln(a.out, plainKey(key))
		return err
	})
	if err == nil && a.json {
		err = a.printJSON(map[string]any{"namespace": f.namespace, "keys": all})
	}
	if err == nil && found == 0 {
		err = fmt.Errorf("keys: of namespace %q: %w", f.namespace, errMiss)
	}
	return err
}

// eachKey calls fn with the keys that a rank has, up to the limit.
func eachKey(client *resp.Client, f keysFlags, fn func(key string) error) error {
	question := []string{"CASCADE.SCAN", f.namespace, "0", "COUNT", strconv.Itoa(keysAtOnce)}
	if f.match != "" {
		question = append(question, "MATCH", f.match)
	}
	for left := f.limit; ; {
		reply, err := client.Do(question...)
		if err != nil {
			return refused("keys", err)
		}
		if len(reply.Elems) != 2 {
			return fmt.Errorf("keys: the answer to %s is not a rank's; is this a cascaded of the same version?", question[0])
		}
		for _, key := range reply.Elems[1].Elems {
			if err := fn(key.Text()); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		if question[2] = reply.Elems[0].Text(); question[2] == "0" {
			return nil
		}
	}
}

// plainKey is a key on a line of its own: quoted unless it is printable text.
func plainKey(key string) string {
	if quoted := strconv.Quote(key); quoted != `"`+key+`"` {
		return quoted
	}
	return key
}

func (a *app) clearCommand() *cobra.Command {
	var c chosen
	var yes bool
	cmd := &cobra.Command{
		Use:   "clear",
		Short: "Forget all keys of a namespace, or of a model, on every rank",
		Long: "Forget all keys of a namespace, or of all namespaces of a model, on every rank of the job and in the lustre\n" +
			"directory. Blocks that other namespaces name stay. Without --yes it only shows what it would clear, with names\n" +
			"counted as by cascade list. Exit status 3: there is none of these.",
		Args: cli.Arity(0, 0),
		RunE: func(*cobra.Command, []string) error { return a.clear(c, yes) },
	}
	c.flags(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "clear it")
	return cmd
}

// cleared is what clear did, or would do, in JSON.
type cleared struct {
	Cleared    bool              `json:"cleared"`
	Namespaces []namespaceReport `json:"namespaces"` // as they were before
}

func (a *app) clear(c chosen, yes bool) error {
	if c.pattern == "" && c.model == "" {
		return cli.Usagef("clear: name what to clear with --namespace or --model; --namespace '*' is everything")
	}
	client, err := a.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	some, err := a.namespaces(client, c)
	if err != nil {
		return err
	}
	if len(some) == 0 && c.model == "" && !strings.ContainsAny(c.pattern, "*?[") {
		some = []namespaceReport{{NamespaceStats: cascade.NamespaceStats{Name: c.pattern}}} // earlier jobs may have left names of it
	}
	if len(some) == 0 {
		return fmt.Errorf("clear: a namespace that was asked for: %w", errMiss)
	}
	if yes {
		for _, n := range some {
			if _, err := client.Do("CASCADE.CLEAR", n.Name); err != nil {
				return refused(fmt.Sprintf("clear: namespace %q", n.Name), err)
			}
		}
	}
	if a.json {
		return a.printJSON(cleared{yes, some})
	}
	var sum cascade.NamespaceStats
	for _, n := range some {
		sum.Names += n.Names + n.Spilled
		sum.BytesReferenced += n.BytesReferenced + n.SpilledBytes
		sum.Estimate = sum.Estimate || n.Estimate
	}
	what := fmt.Sprintf("%s with %s, %s", plural(strconv.Itoa(len(some)), "namespace"), plural(namesText(sum.Names, sum.Estimate), "name"), cli.Human(sum.BytesReferenced))
	if yes {
		_, err = fmt.Fprintf(a.out, "cleared %s, and what earlier jobs left there\n", what)
		return err
	}
	if err := a.namespaceTable(some); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "nothing was cleared: with --yes it is %s, and what earlier jobs left there\n", what)
	return err
}
