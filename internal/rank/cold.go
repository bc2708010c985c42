package rank

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"cascadekv/lustre"
)

const (
	lookEvery    = 2 * time.Second // at the lustre tier
	refusedEvery = time.Minute     // at most, a line about files of others
)

// skippedFile is logged for a file of which not everything can be read.
const skippedFile = "lustre file left out, or in part: its blocks are misses, everything else is served; cascade fsck can repair some, and a file of a later version needs that version"

// coldWatch logs what of lustre.dir is not read, and has files adopted that did not
// answer at the start when they do. It belongs to one goroutine after another.
type coldWatch struct {
	cold  *lustre.Tier
	adopt func() // starts an adoption
	log   *slog.Logger

	late     int // files that have not answered
	refused  int // files of others, as logged
	loggedAt time.Time
}

// begin logs what the recovery left out.
func (w *coldWatch) begin() {
	for _, err := range w.cold.Skipped() {
		w.log.Warn(skippedFile, "err", err)
	}
	late, one := w.cold.Late()
	if w.late = late; late > 0 {
		w.log.Warn("lustre files do not answer: their blocks are misses until they do; check the file system's servers", "files", late, "one", one)
	}
}

// run watches until ctx ends.
func (w *coldWatch) run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		w.logRefused()
		select {
		case <-ctx.Done():
			return
		case <-w.cold.Arrived():
			w.adopt()
		case <-tick.C:
		}
		was := w.late
		if w.late, _ = w.cold.Late(); was > 0 && w.late == 0 {
			w.log.Info("all lustre files that did not answer have answered, and are adopted")
		}
	}
}

// logRefused logs how many files were not read because of their owner, in one line,
// when there are more than before.
func (w *coldWatch) logRefused() {
	r := w.cold.Refused()
	if r.Files <= w.refused || time.Since(w.loggedAt) < refusedEvery {
		return
	}
	w.refused, w.loggedAt = r.Files, time.Now()
	w.log.Warn("files in lustre.dir that are not this user's, or that others can change, are refused: their blocks are misses; "+
		"remove them, or chown them if they are yours, or name the group that shares the directory in lustre.group; cascade fsck names them all",
		"refused", r.Files, "first", strings.Join(r.First, "; "))
}
