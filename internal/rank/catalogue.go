package rank

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"cascadekv/internal/config"
	"cascadekv/internal/vfs"
	"cascadekv/lustre"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/tuner"
)

// openCatalogue gives the tier a catalogue of other ranks' and earlier jobs'
// segments. Without one the rank keeps their blocks and names in memory.
func openCatalogue(t *lustre.Tier, c config.Config, log *slog.Logger) {
	dir, campaign, err := indexDir(c)
	if err == nil {
		err = t.OpenCatalogue(lustre.IndexOptions{Dir: dir, Campaign: campaign})
	}
	if err != nil {
		log.Warn("no catalogue index: blocks of other ranks and jobs are kept in memory, some hundred bytes each; "+
			"set lustre.index to a directory on a disk of this node", "err", err)
		return
	}
	if why := t.Catalogue().(*catalogue.Catalogue).Emptied(); why != nil {
		log.Info("catalogue index: starting empty", "why", why)
		return
	}
	log.Info("catalogue index: opened", "dir", dir)
}

// indexDir returns the directory of this rank's index, which only this user can
// read, and the name of the campaign.
func indexDir(c config.Config) (dir, campaign string, err error) {
	if campaign, err = filepath.Abs(c.Lustre.Dir); err != nil {
		return "", "", err
	}
	base := c.Lustre.Index
	if base == "auto" {
		mine := filepath.Join(os.TempDir(), "cascade-"+strconv.Itoa(os.Getuid()))
		base = filepath.Join(mine, "index")
		err = errors.Join(makePrivate(mine), makePrivate(base))
	} else {
		err = errors.Join(os.MkdirAll(base, 0o700), notExposed(base))
	}
	if err != nil {
		return "", "", err
	}
	sum := fnv.New64a()
	sum.Write([]byte(campaign))
	dir = filepath.Join(base, fmt.Sprintf("%016x-rank%03d", sum.Sum64(), c.Rank))
	return dir, fmt.Sprintf("%s rank %d", campaign, c.Rank), makePrivate(dir)
}

// makePrivate makes a directory that nobody else can change. Others may have
// been there first: the temporary directory is everybody's.
func makePrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that only this user can change", dir)
	}
	return nil
}

// notExposed refuses a directory in which others can put something else in the
// place of one of this user's.
func notExposed(dir string) error {
	st, err := vfs.StatPath(dir)
	if err != nil {
		return err
	}
	mine := st.UID == uint32(os.Getuid()) || st.UID == 0
	if shared := st.Mode&0o022 != 0 && st.Mode&syscall.S_ISVTX == 0; !mine || shared {
		return fmt.Errorf("%s belongs to user %d and has mode %04o: others can replace what lies in it; chmod go-w it, or chmod +t it", dir, st.UID, st.Mode&0o7777)
	}
	return nil
}

// tuneIndex adapts the index of a tier's catalogue, if it has one, to its load until
// ctx ends, and logs the decisions.
func tuneIndex(ctx context.Context, cold *lustre.Tier, log *slog.Logger) {
	c, ok := cold.Catalogue().(*catalogue.Catalogue)
	if !ok {
		return
	}
	if err := c.Tune(ctx, lustre.TuneOptions{Report: tuningLog(log)}); err != nil {
		log.Error("catalogue index: not tuned", "err", err)
	}
}

// tuningLog logs decisions with the costs and the mix that led to them.
func tuningLog(log *slog.Logger) func(d tuner.Decision, made bool, err error) {
	return func(d tuner.Decision, made bool, err error) {
		switch {
		case err != nil:
			log.Warn("catalogue index: retune failed", "decision", d.String(), "err", err)
		case made:
			log.Info("catalogue index: retuned", "t", d.To.T, "k", d.To.K, "decision", d.String(), "serial", d.Serial)
		case d.Verdict == tuner.Keep:
			log.Debug("index tuning", "decision", d.String())
		default:
			log.Info("index tuning", "decision", d.String(), "serial", d.Serial)
		}
	}
}
