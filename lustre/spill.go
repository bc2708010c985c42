package lustre

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cascadekv/internal/block"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/format"
	"cascadekv/tiers"
)

// Spill implements tiers.Files. Without a catalogue nothing is spilled.
func (t *Tier) Spill(ctx context.Context, let func([]block.ID) bool) (bool, error) {
	if t.catalogue == nil {
		return false, nil
	}
	_, ok, err := t.Store.Spill(ctx, let)
	return ok, err
}

// Spilled implements tiers.Files.
func (t *Tier) Spilled() []tiers.SpilledFile {
	files := t.SpilledFiles()
	if len(files) == 0 {
		return nil
	}
	use := t.catalogue.UseOf(files)
	all := make([]tiers.SpilledFile, len(files))
	for i, f := range files {
		u := use[i]
		// Withdrawals are all that keeps the directory of a run that has ended: the merge moves
		// them to a file of this run, but for those that nothing needs.
		bare := f.Earlier && f.Blocks == 0 && u.Names == 0 && u.Stale == 0
		// As each block was put with a name, those without one in the file are mostly of use to nobody.
		nameless := f.Blocks > 0 && float64(u.Names) <= (1-staleShare)*float64(f.Blocks)
		wasted := u.Known && (u.Stale >= staleShare || nameless || f.Crowds || bare)
		all[i] = tiers.SpilledFile{Part: f.Part, Number: f.Number, Path: segment.Path(f.Part, f.Number), Bytes: f.Size, Blocks: f.Blocks, Names: u.Names, Wasted: wasted}
	}
	return all
}

// staleShare is which share of a file's names must stand for nothing, or of its blocks have no name, for the file to be
// worth merging: about half of its bytes come back then.
const staleShare = 0.5

// forgetWait bounds how long the catalogue may take to forget files that are gone.
const forgetWait = time.Minute

// Recover implements tiers.Tier.
func (t *Tier) Recover(fn func(tiers.Entry) error) error {
	return t.newest(fn, t.Store.Recover, false)
}

// Adopt implements tiers.Files.
func (t *Tier) Adopt(ctx context.Context, p tiers.Part, fn func(tiers.Entry) error) error {
	return t.newest(fn, func(fn func(tiers.Entry) error) error { return t.Store.Adopt(ctx, p, fn) }, true)
}

// AdoptOrphan implements tiers.Files.
func (t *Tier) AdoptOrphan(ctx context.Context, p tiers.Part, fn func(tiers.Entry) error) (adopted bool, err error) {
	err = t.newest(fn, func(fn func(tiers.Entry) error) (err error) {
		adopted, err = t.Store.AdoptOrphan(ctx, p, fn)
		return err
	}, true)
	return adopted, err
}

// newest calls fn for what read finds, without names of which there are later records, and with those that
// are recorded apart. The store of segments does not know those of spilled files, nor those that this rank put or
// deleted of what it inherits: the catalogue does.
func (t *Tier) newest(fn func(tiers.Entry) error, read func(func(tiers.Entry) error) error, inherited bool) error {
	if t.catalogue == nil {
		return read(fn)
	}
	var all []tiers.Entry
	gather := func(e tiers.Entry) error {
		all = append(all, e)
		return nil
	}
	if err := read(gather); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), forgetWait)
	defer cancel()
	for i := range all { // as long as nobody knows
		all[i].Wanted = !all[i].OtherOwner
	}
	err := t.catalogue.ForgetGone(ctx)
	switch {
	case err != nil && t.catalogue.Err() == nil:
		return err
	case err == nil && (inherited || len(t.SpilledFiles()) > 0): // in a broken one nothing is found
		if err := t.amend(all); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// amend gives entries the names that count: without those of which the catalogue has later records, and with those
// that it has apart from them.
func (t *Tier) amend(all []tiers.Entry) error {
	var names []block.Name
	var ids []block.ID
	for _, e := range all {
		names = append(names, e.Names...)
		if !e.Info.ID.IsZero() && !e.OtherOwner {
			ids = append(ids, e.Info.ID)
		}
	}
	newer, err := t.catalogue.Newer(names)
	if err != nil {
		return err
	}
	more, others, err := t.catalogue.NamesOf(ids)
	if err != nil {
		return err
	}
	for i, e := range all {
		var kept []block.Name
		for j, n := range e.Names {
			if !newer[j] {
				kept = append(kept, n)
			}
		}
		newer = newer[len(e.Names):]
		e.Names, e.Wanted = kept, others[e.Info.ID]
		all[i] = withNames(e, more[e.Info.ID])
	}
	return nil
}

// Reload implements tiers.Files.
func (t *Tier) Reload(ctx context.Context, f tiers.SpilledFile, fn func(tiers.Entry) error) error {
	if t.catalogue == nil {
		return fmt.Errorf("lustre: %w: it spills nothing without a catalogue", tiers.ErrNotFound)
	}
	entries, err := t.Store.Reload(ctx, f.Part, f.Number, t.catalogue.Worth)
	if err != nil {
		return err
	}
	ids := make([]block.ID, len(entries))
	for i, e := range entries {
		ids[i] = e.Info.ID
	}
	var more map[block.ID][]block.Name
	var others map[block.ID]bool
	unsure := t.catalogue.Whole(func() (err error) {
		more, others, err = t.catalogue.NamesOf(ids)
		return err
	})
	for _, e := range entries {
		// Names that the index does not give now are found when their own files are read, and the
		// block by the catalogue meanwhile: without a name it would be evicted.
		if unsure != nil && len(e.Names) == 0 {
			continue
		}
		e.Wanted = others[e.Info.ID]
		if err := fn(withNames(e, more[e.Info.ID])); err != nil {
			return err
		}
	}
	return nil
}

// withNames adds to an entry those names that it does not have.
func withNames(e tiers.Entry, more []block.Name) tiers.Entry {
	for _, n := range more {
		if !slices.ContainsFunc(e.Names, func(one block.Name) bool { return one.Key == n.Key && one.Namespace == n.Namespace }) {
			e.Names = append(e.Names, n)
		}
	}
	return e
}

// LinkAt implements tiers.Files.
func (t *Tier) LinkAt(at tiers.Segment, id block.ID, n block.Name) error {
	f, ok := format.ParsePath(at.Path)
	switch {
	case !ok || t.catalogue == nil || !t.catalogue.Owns(f.Part()):
		return fmt.Errorf("lustre: %w: %s is not this rank's", tiers.ErrNotFound, at.Path)
	case t.IsSpilled(f.Part(), f.Number):
		return t.LinkSpilled(id, n)
	}
	return t.Link(id, n)
}

var _ segment.Indexer = (*catalogue.Catalogue)(nil)
