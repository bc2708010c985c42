package lustre

import (
	"context"
	"fmt"

	"cascadekv/internal/block"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/index"
	"cascadekv/lustre/layout"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/pool"
	"cascadekv/tiers"
)

// Busy is the error while the kernel still uses the caller's memory; see the package's
// documentation.
type Busy = pool.Busy

// Options configure the tier; see segment.Options.
type Options = segment.Options

// IndexOptions configure a catalogue's index; see index.Options.
type IndexOptions = index.Options

// TuneOptions say when the index is tuned; see catalogue.TuneOptions.
type TuneOptions = catalogue.TuneOptions

// Tier is the cold tier: a store of segments and, if OpenCatalogue was called, a
// catalogue of those of others.
type Tier struct {
	*segment.Store
	catalogue *catalogue.Catalogue // nil: none
	layout    segment.Layouter     // nil: none
	rank      uint32
	stood     stood
}

var _ tiers.Files = (*Tier)(nil)

// Open makes the tier over o.Dir. It reads nothing yet: call Recover. Errors
// match tiers.ErrUnavailable.
func Open(o Options) (*Tier, error) {
	s, err := segment.Open(o)
	if err != nil {
		return nil, err
	}
	return &Tier{Store: s, layout: o.Layout, rank: o.Rank}, nil
}

// OpenCatalogue gives the tier a catalogue over o.Dir, which must lie on
// node-local storage. It is called before the tier is used, and the tier should
// have been opened with OwnOnly and Catalogued. The tier closes it. Errors:
// tiers.ErrUnavailable; the tier works without one.
func (t *Tier) OpenCatalogue(o IndexOptions) error {
	o.Rank = t.rank
	c, err := catalogue.Open(catalogue.Options{Store: t.Store, Index: o})
	if err != nil {
		// Without one, what others left is adopted, and the store has it in memory.
		t.Hides(func(names []block.Name) []bool { return make([]bool, len(names)) })
		return fmt.Errorf("lustre: %w", err)
	}
	t.catalogue = c
	t.SetIndexer(c)
	return nil
}

// Catalogue implements tiers.Files. The result is a *catalogue.Catalogue.
func (t *Tier) Catalogue() tiers.Catalogue {
	if t.catalogue == nil {
		return nil
	}
	return t.catalogue
}

// Stats implements tiers.Tier.
func (t *Tier) Stats() tiers.Stats {
	health, encoded, merged := t.Health(), t.Encoded(), t.Merged()
	return tiers.Stats{Health: &health, Encoded: &encoded, Merged: &merged, Striping: t.striping()}
}

// striping describes the newest file, nil before the first. It leaves out which
// servers the file lies on: they differ from file to file.
func (t *Tier) striping() *tiers.Striping {
	r, ok := t.layout.(interface{ Last() (layout.Report, bool) })
	if !ok {
		return nil
	}
	last, ok := r.Last()
	if !ok {
		return nil
	}
	s := &tiers.Striping{Asked: last.Asked.String(), Granted: last.Granted.Layout().Options()}
	for _, d := range last.Differences {
		s.Differences = append(s.Differences, d.String())
	}
	if last.Err != nil {
		s.Error = last.Err.Error()
	}
	return s
}

// Gone implements tiers.Files.
func (t *Tier) Gone(ctx context.Context, paths ...string) ([]string, error) {
	return segment.Gone(ctx, t.Store, paths...)
}

// Close implements tiers.Tier. It also writes what Link and Unlink recorded and
// seals the current segment.
func (t *Tier) Close() error {
	err := t.Store.Close() // the catalogue has what it writes
	if t.catalogue != nil {
		_ = t.catalogue.Close() // a broken one has nothing to lose: it is filled again
	}
	return err
}
