package tunerbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"time"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/internal/cli"
	"cascadekv/internal/resp"
	"cascadekv/tiers"
)

const (
	startPatience = 60 * time.Second
	answerWait    = 5 * time.Minute // CASCADE.DRAIN takes as long as writing does

	// As in catalogue.TuneOptions, which no key of the configuration changes.
	tuneEvery  = 10 * time.Second
	tuneQuiet  = 5 * time.Second
	tuneSlack  = 250 * time.Millisecond // between the last answer to a client and what the rank counts from
	tuneWait   = 2 * time.Minute        // for a judgement, and the change that it leads to
	statsEvery = 250 * time.Millisecond

	settleEvery = 500 * time.Millisecond
	settleWait  = time.Minute
)

// liveRank is a cascaded that works on a directory of segments. One goroutine uses it.
type liveRank struct {
	*kit.Process
	socket   string
	segments string // directory
	tuned    bool
	began    time.Time // when the tuner's clock started, as far as can be seen from here
	control  *resp.Client
	last     rankStats
}

// rankStats is what counts of CASCADE.STATS.
type rankStats struct {
	Version   string                `json:"version"`
	Corrupt   uint64                `json:"corrupt"`
	Lost      uint64                `json:"lost"`
	Catalogue *tiers.CatalogueState `json:"catalogue"`
	Tiers     []tiers.Stats         `json:"tiers"`
}

// merged is what merges of segments did.
func (s *rankStats) merged() (m tiers.Merged) {
	for _, t := range s.Tiers {
		if t.Merged != nil {
			m = *t.Merged
		}
	}
	return m
}

// judgements is how often the tuner has judged.
func (s *rankStats) judgements() (n uint64) {
	if t := s.Catalogue.Tuner; t != nil {
		for _, of := range t.Verdicts {
			n += of
		}
	}
	return n
}

// paths are where a rank has its files.
type paths struct {
	dir, segments, index, arena string
}

// startLive runs cascaded as rank number n and waits until it serves.
func startLive(ctx context.Context, n int, p paths, memory int64, tuned bool) (r *liveRank, err error) {
	path, err := cli.Find("cascaded")
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", kit.ErrNoRank, err)
	}
	r = &liveRank{socket: filepath.Join(p.dir, "rank"+number(n)+".sock"), segments: p.segments, tuned: tuned}
	tuning := "off"
	if tuned {
		tuning = "auto"
	}
	// A rank that keeps all names on its heap must not give any up meanwhile.
	r.Process, err = kit.Start("cascaded", io.Discard, exec.Command(path, "--rank", number(n), "--socket", r.socket, "--listen=",
		"--shm-path", p.arena, "--shm-bytes", number(memory), "--names-bytes", "16GiB", "--lustre-dir", p.segments,
		"--lustre-index", p.index, "--lustre-index-tuning", tuning, "--password-file=", "--admin-listen=", "--log-level", "warn"))
	if err != nil {
		return nil, err
	}
	var refused error
	err = kit.Until(ctx, 20*time.Millisecond, startPatience, func() (bool, error) {
		r.control, refused = resp.Dial("unix", r.socket, answerWait)
		return refused == nil, r.Alive()
	})
	if err == nil {
		r.began = time.Now()
		_, err = r.stats()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: cascaded at %s: %w", kit.ErrStart, r.socket, err), refused, r.close())
	}
	return r, nil
}

// stats asks the rank how it is. Errors: ErrCatalogue when it has no catalogue, or one
// that broke at some time; kit.ErrWrong when it has noticed wrong bytes, ErrLost when
// blocks are lost.
func (r *liveRank) stats() (s rankStats, err error) {
	reply, err := r.control.Do("CASCADE.STATS")
	if err != nil {
		return s, errors.Join(fmt.Errorf("bench: CASCADE.STATS: %w", err), r.Alive())
	}
	if err := json.Unmarshal(reply.Str, &s); err != nil {
		return s, fmt.Errorf("bench: CASCADE.STATS: %w", err)
	}
	c := s.Catalogue
	switch {
	case c == nil:
		err = fmt.Errorf("%w: there is none: %s", ErrCatalogue, r.Output())
	case c.Broken != "":
		err = fmt.Errorf("%w: %s", ErrCatalogue, c.Broken)
	case r.last.Catalogue != nil && c.Puts < r.last.Catalogue.Puts:
		err = fmt.Errorf("%w: it was begun anew: %s", ErrCatalogue, r.Output())
	case s.Corrupt > 0:
		err = fmt.Errorf("%w: the rank withdrew %d blocks: %s", kit.ErrWrong, s.Corrupt, r.Output())
	case s.Lost > 0:
		err = fmt.Errorf("%w: %d: %s", ErrLost, s.Lost, r.Output())
	default:
		r.last = s
	}
	return s, err
}

// judged waits, after requests, until the tuner has judged what they did, at a moment
// that is quiet enough for a change, and the change is made. Of a rank that is
// not tuned it waits for as long.
func (r *liveRank) judged(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(tuneQuiet + tuneSlack):
	}
	s, err := r.stats()
	if err != nil {
		return err
	}
	before, since := s.judgements(), time.Since(r.began)/tuneEvery
	err = kit.Until(ctx, statsEvery, tuneWait, func() (bool, error) {
		s, err := r.stats()
		if err != nil || s.Catalogue.SizeRatio == 0 { // it is being given another shape
			return false, err
		}
		if !r.tuned {
			return time.Since(r.began)/tuneEvery > since, nil
		}
		return s.judgements() > before, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("%w: no judgement in %v: %s", ErrCatalogue, tuneWait, r.Output())
	}
	return err
}

// settled waits until the rank writes nothing more: what it took in at its start goes to
// disk soon after.
func (r *liveRank) settled(ctx context.Context) error {
	before := ^uint64(0)
	return kit.Until(ctx, settleEvery, settleWait, func() (bool, error) {
		now, err := r.Written()
		same := now == before
		before = now
		return same, errors.Join(err, r.Alive())
	})
}

// drain writes everything that is in memory only.
func (r *liveRank) drain() error {
	if _, err := r.control.Do("CASCADE.DRAIN"); err != nil {
		return errors.Join(fmt.Errorf("bench: CASCADE.DRAIN: %w", err), r.Alive())
	}
	return nil
}

// used is what a rank has taken so far.
type used struct {
	rankStats
	cpu      time.Duration
	written  uint64 // to disks
	segments int64  // of segments that are there, or were until a merge
}

func (r *liveRank) used() (u used, err error) {
	if u.rankStats, err = r.stats(); err != nil {
		return u, err
	}
	if u.cpu, err = r.CPU(); err != nil {
		return u, err
	}
	if u.written, err = r.Written(); err != nil {
		return u, err
	}
	u.segments = int64(u.merged().Removed)
	err = filepath.WalkDir(r.segments, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = entry.Info(); err == nil {
				u.segments += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // a rank removes files of its own
			return nil
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("bench: %w", err)
	}
	return u, err
}

func (r *liveRank) close() error {
	if r.control != nil {
		_ = r.control.Close() // nothing was left to say on it
	}
	return r.Stop()
}
