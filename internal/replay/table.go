package replay

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table writes the results for people, one column per run.
func Table(w io.Writer, results []Result) error {
	var all [][]string
	for _, line := range rows(results) {
		all = append(all, append([]string{line.name}, line.cells...))
	}
	if err := writeRows(w, all); err != nil {
		return fmt.Errorf("replay: write the table: %w", err)
	}
	return nil
}

func writeRows(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, cells := range rows {
		fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// line is one figure of every run.
type line struct {
	name  string
	hint  string // what the figure means
	cells []string
	bad   []bool // cells that must not be overlooked
}

// rows lists the figures of a table in words.
func rows(results []Result) []line {
	lines := []line{
		row(results, "policy", "what evicts from the fastest tier", func(r Result) string { return or(r.Policy, "-") }),
		row(results, "requests", "replayed", func(r Result) string { return count(int64(r.Requests)) }),
		row(results, "blocks", "asked for, by all requests", func(r Result) string { return count(r.Blocks) }),
		row(results, "unique blocks", "distinct blocks asked for", func(r Result) string { return count(r.UniqueBlocks) }),
		row(results, "block", "size of each", func(r Result) string { return size(int64(r.BlockBytes)) }),
		row(results, "capacity", "of the bounded tiers together", func(r Result) string { return or(size(r.CapacityBytes), "-") }),
		row(results, "hit ratio, blocks", "served with all blocks before them", func(r Result) string { return share(r.HitRatioBlocks) }),
		row(results, "unlimited", "what an empty cache that keeps everything would reach", func(r Result) string { return share(r.UnlimitedHitRatio) }),
	}
	for _, tier := range tierNames(results) {
		lines = append(lines, row(results, "from "+tier, "share of all blocks that this tier served", func(r Result) string { return share(r.Tiers[tier].HitRatio) }))
	}
	lines = append(lines,
		row(results, "hit ratio, tokens", "share of the prompts' tokens", func(r Result) string { return share(r.HitRatioTokens) }),
		row(results, "dedup ratio", "blocks asked for / unique blocks", func(r Result) string { return fmt.Sprintf("%.3f", r.DedupRatio) }),
		row(results, "rejected blocks", "not stored for want of room", func(r Result) string { return count(r.RejectedBlocks) }),
	)
	wrong := row(results, "wrong bytes", "of hits: must be 0", func(r Result) string { return count(r.WrongBytes) })
	for i, r := range results {
		wrong.bad[i] = r.WrongBytes != 0
	}
	lines = append(lines, wrong,
		row(results, "get", "while getting", func(r Result) string { return rate(r.GBps.Get) }),
		row(results, "put", "while putting", func(r Result) string { return rate(r.GBps.Put) }))
	for _, op := range operations {
		lines = append(lines, row(results, op.name+" p50 / p99", op.hint, func(r Result) string {
			l := op.of(r)
			return micros(l.P50) + " / " + micros(l.P99)
		}))
	}
	return append(lines, row(results, "time", "of the whole run, payloads included", func(r Result) string { return fmt.Sprintf("%.1f s", r.Seconds) }))
}

// operations are what a run times.
var operations = []struct {
	name, hint string
	of         func(Result) Latency
}{
	{"probe", "time of one request's probe", func(r Result) Latency { return r.ProbeUS }},
	{"get", "time of one request's get, all blocks that hit", func(r Result) Latency { return r.GetUS }},
	{"put", "time of one request's put, all blocks that missed", func(r Result) Latency { return r.PutUS }},
}

func row(results []Result, name, hint string, cell func(Result) string) line {
	l := line{name: name, hint: hint, bad: make([]bool, len(results))}
	for _, r := range results {
		l.cells = append(l.cells, cell(r))
	}
	return l
}

// tierNames lists the tiers of all runs, fastest first.
func tierNames(results []Result) []string {
	var names []string
	seen := map[string]bool{}
	for _, r := range results {
		for _, name := range r.TierOrder {
			if !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func share(x float64) string { return fmt.Sprintf("%.2f %%", 100*x) }

// count groups digits by three.
func count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// size formats bytes in the largest unit that leaves at least one; "" for 0.
func size(n int64) string {
	if n == 0 {
		return ""
	}
	x, unit := float64(n), 0
	for ; x >= 1024 && unit < 4; unit++ {
		x /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0") + " " + []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}

func rate(gbps float64) string {
	if gbps == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f GB/s", gbps)
}

func micros(us float64) string {
	switch {
	case us == 0:
		return "-"
	case us < 1:
		return fmt.Sprintf("%.0f ns", us*1e3)
	case us < 10:
		return fmt.Sprintf("%.1f µs", us)
	case us < 1e3:
		return fmt.Sprintf("%.0f µs", us)
	case us < 1e5:
		return fmt.Sprintf("%.1f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f s", us/1e6)
}
