package main

import (
	"fmt"
	"log/slog"
	"strings"

	"cascadekv/internal/config"
	"cascadekv/lustre/layout"
	"cascadekv/lustre/segment"
)

// layoutOf is the layout of segments that the configuration asks for.
func layoutOf(c config.Lustre) (layout.Layout, error) {
	return layout.Settings{
		StripeCount: c.StripeCount, StripeSize: int64(c.StripeSize), Pool: c.Pool, Setstripe: c.Setstripe,
	}.Layout()
}

// adviserOf is who tells the servers of reads to come; nil: nobody.
func adviserOf(c config.Lustre) segment.Adviser {
	if !c.Advise {
		return nil
	}
	return layout.Adviser{}
}

// checkStriping refuses a setstripe line that lfs would not take, and names the
// place where it is written.
func checkStriping(l *config.Loaded) error {
	if _, err := layoutOf(l.Lustre); err != nil {
		return l.Refuse("lustre.setstripe", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
	return nil
}

// newStriper lays out the rank's segments and logs what they were granted.
func newStriper(c config.Lustre, log *slog.Logger) (*layout.Striper, error) {
	asked, err := layoutOf(c)
	if err != nil {
		return nil, fmt.Errorf("lustre.setstripe: %w", err)
	}
	for _, w := range asked.Warnings(int64(c.SegmentBytes)) {
		log.Warn("striping keys: " + w)
	}
	return layout.NewStriper(asked, func(r layout.Report) { logLayout(log, r) }), nil
}

// logLayout tells what became of the striping keys.
func logLayout(log *slog.Logger, r layout.Report) {
	log = log.With("file", strings.TrimSuffix(r.Path, ".tmp"), "asked", r.Asked.String())
	switch {
	case r.Err != nil:
		log.Warn("striping could not be set: segments are written all the same", "granted", r.Granted.String(), "err", r.Err)
	case len(r.Differences) > 0:
		var all []string
		for _, d := range r.Differences {
			all = append(all, d.String())
		}
		log.Warn("segments are not striped as configured", "granted", r.Granted.String(), "differences", strings.Join(all, "; "))
	default:
		log.Info("layout of segments", "granted", r.Granted.String())
	}
}

// logFileSystem says where lustre.dir really is, in one line, and warns of a
// Lustre that is written through the page cache.
func logFileSystem(c config.Lustre, a segment.Access, log *slog.Logger) {
	i, err := layout.Detect(c.Dir)
	asked, _ := layoutOf(c)
	switch {
	case err != nil:
		log.Warn("the file system of lustre.dir cannot be told", "err", err)
	case i.Lustre:
		log.Info("lustre.dir is on Lustre", "dir", c.Dir, "filesystem", i.Name, "client", i.Version)
		if !a.Direct {
			log.Warn("writes to Lustre go through the page cache: after an eviction of this node, what was acknowledged can be lost if another process has"+
				" synced the file; set lustre.direct to auto, and see docs/lustre.md, section 6", "no_direct", a.NoDirect)
		}
	case asked.IsZero():
		log.Info("lustre.dir is not on Lustre: everything works, nothing is striped", "dir", c.Dir, "type", fmt.Sprintf("%#x", i.Type))
	default:
		log.Warn("lustre.dir is not on Lustre: the striping keys have no effect there", "dir", c.Dir, "type", fmt.Sprintf("%#x", i.Type), "asked", asked.String())
	}
}
