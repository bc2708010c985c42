package rank

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"cascadekv/internal/config"
	"cascadekv/lustre"
	"cascadekv/lustre/layout"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/trust"

	"golang.org/x/sys/unix"
)

// openLustre opens the tier of lustre. successor: this process was a rank before, as another program.
func openLustre(c config.Config, successor bool, log *slog.Logger) (*lustre.Tier, error) {
	striper, err := newStriper(c.Lustre, log)
	if err != nil {
		return nil, err
	}
	group, err := trust.GroupID(c.Lustre.Group)
	if err != nil {
		return nil, fmt.Errorf("lustre.group = %q: %w", c.Lustre.Group, err)
	}
	cold, err := lustre.Open(lustre.Options{
		Dir: c.Lustre.Dir, Group: group, Rank: uint32(c.Rank), Succeeds: successor, SegmentBytes: int64(c.Lustre.SegmentBytes), Layout: striper,
		SegmentBlocks: c.Lustre.SegmentBlocks, MaxFiles: c.Lustre.MaxFiles, MaxOpenFiles: openFiles(c, nil).Files,
		OwnOnly:      c.Peers.Fabric != "off" || c.Lustre.Index != "off", // the adopters of the job share the rest
		Catalogued:   c.Lustre.Index != "off",
		AdoptOrphans: c.Lustre.Budget > 0,
		Compress:     c.Lustre.Codec == "auto",
		Direct:       switchOf(c.Lustre.Direct), Uring: switchOf(c.Lustre.IOUring), Advice: adviserOf(c.Lustre),
	})
	if err != nil {
		return nil, err
	}
	if c.Lustre.Index != "off" {
		openCatalogue(cold, c, log)
	}
	a := cold.Access()
	logFileSystem(c.Lustre, a, log)
	if a.Exposed {
		log.Warn("anybody can rename and remove what lies in lustre.dir, and put files there, which are not read: chmod o-w it, or at least chmod +t it",
			"dir", c.Lustre.Dir)
	}
	if err := refusesWrites(c.Lustre.Dir, a); err != nil {
		log.Error("lustre.dir cannot be written: what memory gives up is gone, and nothing outlives the rank; check its owner, mode and quota",
			"dir", c.Lustre.Dir, "err", err)
	}
	log.Info("lustre access", "direct", a.Direct, "no_direct", a.NoDirect, "io_uring", a.Uring, "no_io_uring", a.NoUring)
	return cold, nil
}

// refusesWrites returns why nothing can be written to the lustre directory; nil where
// nothing speaks against it: a server may still refuse.
func refusesWrites(dir string, a segment.Access) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return err
	}
	for _, reason := range []error{fs.ErrPermission, unix.EROFS, unix.EDQUOT} {
		if errors.Is(a.NoDirect, reason) {
			return a.NoDirect
		}
	}
	return nil
}

// switchOf reads a validated word of the configuration.
func switchOf(word string) segment.Switch {
	switch word {
	case "on":
		return segment.On
	case "off":
		return segment.Off
	}
	return segment.Auto
}

// layoutOf returns the layout of segments that the configuration asks for.
func layoutOf(c config.Lustre) (layout.Layout, error) {
	return layout.Settings{
		StripeCount: c.StripeCount, StripeSize: int64(c.StripeSize), Pool: c.Pool, Setstripe: c.Setstripe,
	}.Layout()
}

// adviserOf returns what sends the servers hints of reads to come; nil: none.
func adviserOf(c config.Lustre) segment.Adviser {
	if !c.Advise {
		return nil
	}
	return layout.Adviser{}
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

// logLayout logs what a file was granted of the striping keys.
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

// logFileSystem logs what kind of file system lustre.dir is on, in one line, and
// warns of a Lustre that is written through the page cache.
func logFileSystem(c config.Lustre, a segment.Access, log *slog.Logger) {
	i, err := layout.Detect(c.Dir)
	asked, _ := layoutOf(c)
	switch {
	case err != nil:
		log.Warn("the file system of lustre.dir is unknown", "err", err)
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
