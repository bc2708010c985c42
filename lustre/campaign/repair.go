package campaign

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment/format"
)

// RepairOptions say how far Repair goes.
type RepairOptions struct {
	// Force repairs although a segment was changed lately. The caller is sure
	// that no rank runs on the campaign: what a running rank adds to a file
	// after it was moved aside is lost. What a process of this machine has open
	// for writing is left alone all the same.
	Force bool
	// Delete removes damaged files once their contents are safe, instead of
	// moving them aside, and what earlier repairs moved aside, and segments
	// that were never published.
	Delete bool
}

// Salvage is what became of one damaged segment.
type Salvage struct {
	File       string   `json:"file"`
	Into       []string `json:"into,omitempty"`  // new segments with what was intact
	Aside      string   `json:"aside,omitempty"` // where the damaged file is now
	Deleted    bool     `json:"deleted,omitempty"`
	Blocks     int      `json:"blocks"`      // kept
	BlocksLost int      `json:"blocks_lost"` // of those that a record still named
	Names      int      `json:"names"`       // kept, withdrawn ones too
	Skipped    string   `json:"skipped,omitempty"`
}

// Repair acts on the findings of a report of the same campaign and brings it
// up to date. What is intact of a damaged segment goes to a new segment of the
// same rank, in an incarnation of its own; only when that is durable the
// damaged file is moved aside. No segment is touched while one in the campaign
// may have a writer, and none that has changed since it was checked or cannot
// be read; Skipped has the reason. The error is the first one of the file system or ctx's; what was
// done before stays done and is in the report.
func Repair(ctx context.Context, r *Report, how RepairOptions) error {
	w := &repairer{r: r, o: &r.c.o, how: how, dirs: map[uint32]format.FileID{}, open: r.c.o.Writers()}
	defer r.count()
	if err := w.modes(); err != nil {
		return err
	}
	w.inUse()
	err := withBuffers(func(in, out []byte) error {
		w.in, w.out = in, out
		return w.segments(ctx)
	})
	if err == nil && how.Delete {
		err = w.litter()
	}
	return err
}

type repairer struct {
	r       *Report
	o       *Options
	how     RepairOptions
	in, out []byte
	dirs    map[uint32]format.FileID // new incarnations, with the next free number
	open    map[string]bool
	busy    string // why nothing is salvaged
}

func (w *repairer) segments(ctx context.Context) error {
	for _, s := range w.r.c.present() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !w.r.broken[s] {
			continue
		}
		done, err := w.segment(s)
		w.r.Repairs = append(w.r.Repairs, done)
		if err != nil {
			return fmt.Errorf("repair of %s: %w", s.Path, err)
		}
	}
	return nil
}

// inUse finds out whether a rank seems to run on the campaign. It would miss
// the blocks of files that are moved aside, and would count a name as gone for
// good that the new segments still have.
func (w *repairer) inUse() {
	for _, s := range w.r.c.present() {
		if s.Writer && !w.how.Force {
			w.busy = fmt.Sprintf("a rank may be running: %s was changed %s ago and has no end yet; repair when none runs, or with force",
				s.Path, w.o.Now().Sub(s.info.ModTime()).Round(time.Second))
			return
		}
	}
}

// done marks the findings about a file that keep accepts.
func (w *repairer) done(path string, keep func(*Finding) bool) {
	for _, f := range w.r.Findings {
		if f.File == path && keep(f) {
			f.Repaired, f.Remedy = true, ""
		}
	}
}

func (w *repairer) modes() error {
	for _, it := range w.r.modes {
		mode := it.info.Mode().Perm() & 0o700
		if w.o.others(it) != 0o077 {
			mode = it.info.Mode().Perm() & 0o750
		}
		if err := w.o.Chmod(filepath.Join(w.o.Dir, it.path), mode); err != nil {
			return err
		}
		w.done(it.path, func(f *Finding) bool { return f.Kind == KindMode })
	}
	return nil
}

// segment repairs one file.
func (w *repairer) segment(s *Segment) (done Salvage, err error) {
	done.File = s.Path
	if done.Skipped = w.untouchable(s); done.Skipped != "" {
		return done, nil
	}
	f, v, err := w.o.open(s, segfile.InspectOptions{Payloads: true, IDs: w.r.how.IDs || s.ids, Buf: w.in})
	if err != nil {
		return done, err
	}
	defer f.Close() // only read: its error means nothing
	switch {
	case v.Unknown > 0:
		done.Skipped = fmt.Sprintf("it has %d entries of kinds that this program does not know", v.Unknown)
	case slices.ContainsFunc(v.Damage, func(d segfile.Damage) bool { return d.Kind == segfile.BadVersion }):
		done.Skipped = "it is of a format version that this program does not know"
	case len(v.Damage) == 0 && slices.ContainsFunc(v.Entries, func(e segfile.Entry) bool { return !e.Known() }):
		done.Skipped = "it has blocks with codecs that this program does not know, whose ids were not computed"
	case len(v.Damage) == 0: // of a conflict the copy that is right
		done.Skipped = "nothing is wrong with it alone"
		w.done(s.Path, func(f *Finding) bool { return f.Kind == KindConflict })
	}
	if done.Skipped != "" {
		return done, nil
	}
	if err := w.salvage(f, v, &done); err != nil {
		return done, err
	}
	return done, w.putAway(s, &done)
}

// untouchable returns why a segment must be left alone, "" when it need not be.
func (w *repairer) untouchable(s *Segment) string {
	info, err := w.o.Lstat(filepath.Join(w.o.Dir, s.Path))
	switch {
	case err != nil:
		return err.Error()
	case info.Size() != s.info.Size() || !info.ModTime().Equal(s.info.ModTime()):
		return "it has changed since it was checked: check again"
	case !s.footer && w.open[filepath.ToSlash(s.Path)]:
		return "a process of this machine has it open for writing: stop the rank first"
	}
	return w.busy
}

// salvage writes what is intact to new segments.
func (w *repairer) salvage(f vfs.File, v *segfile.View, done *Salvage) error {
	seen := map[block.ID]bool{}
	var kept []format.Entry
	for _, e := range v.Entries {
		switch isBlock := e.Kind == format.KindBlock; {
		case e.Bad:
			done.BlocksLost++
		case !isBlock || !seen[e.Info.ID]:
			kept = append(kept, e.Entry)
			if isBlock {
				seen[e.Info.ID] = true
			}
		}
	}
	if len(kept) == 0 {
		return nil
	}
	id, has := w.dirs[v.ID.Rank]
	if !has {
		var err error
		if id, err = w.o.makeIncarnation(v.ID.Rank, uint64(w.o.Now().UnixNano())); err != nil {
			return err
		}
	}
	from, err := segfile.NewCopier(f, w.in, nil)
	if err != nil {
		return err
	}
	for _, d := range format.Drafts(id, v.NewHeader(), kept) {
		err := w.o.publish(d.ID, w.out, func(s *sink) ([]byte, error) { return d.WriteFrames(s, from.Copy) })
		if err != nil {
			return err
		}
		done.Into = append(done.Into, filepath.Join(d.ID.Dir(), d.ID.Name()))
		done.Blocks += d.Blocks
		done.Names += d.Names
		d.ID.Number++
		w.dirs[d.ID.Rank] = d.ID
	}
	return nil
}

// putAway takes the damaged file out of the readers' way.
func (w *repairer) putAway(s *Segment, done *Salvage) error {
	path := filepath.Join(w.o.Dir, s.Path)
	if w.how.Delete {
		if err := w.o.FS.Remove(path); err != nil {
			return err
		}
		done.Deleted = true
	} else {
		to, err := w.o.asidePath(path)
		if err == nil {
			err = w.o.FS.Rename(path, to)
		}
		if err != nil {
			return err
		}
		done.Aside = filepath.Join(filepath.Dir(s.Path), filepath.Base(to))
	}
	w.done(s.Path, func(f *Finding) bool { return f.Severity == Problem })
	return nil
}

// litter removes what nobody reads: earlier repairs' files and segments that
// were never published.
func (w *repairer) litter() error {
	for _, it := range w.r.c.listing.files {
		switch {
		case it.err != nil, it.kind != isTemp && it.kind != isDamaged:
			continue
		case it.kind == isTemp && w.open[filepath.ToSlash(temporaryOf(it.path))]:
			continue
		case it.kind == isTemp && !w.how.Force && w.o.Now().Sub(it.info.ModTime()) < w.o.Quiet:
			continue
		}
		if err := w.o.FS.Remove(filepath.Join(w.o.Dir, it.path)); err != nil {
			return err
		}
		w.done(it.path, func(f *Finding) bool { return f.Severity == Note })
	}
	return nil
}
