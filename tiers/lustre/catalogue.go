package lustre

import (
	"context"
	"fmt"
	"slices"

	"cascadekv/internal/block"
	"cascadekv/lustre/catalogue"
	"cascadekv/lustre/index"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/tuner"
	"cascadekv/tiers"
)

// IndexOptions configure a catalogue's index; see index.Options.
type IndexOptions = index.Options

// OpenCatalogue gives the tier a catalogue over o.Dir, which must lie on
// node-local storage. It is called before the tier is used, and the tier should
// have been opened with OwnOnly and Apart. The tier closes it. Errors:
// tiers.ErrUnavailable; the tier works without one.
func (t *Tier) OpenCatalogue(o IndexOptions) error {
	c, err := catalogue.Open(catalogue.Options{Store: t.store, Index: o})
	if err != nil {
		// Without one, what others left is adopted, and the store knows it itself.
		t.store.Hides(func(names []block.Name) []bool { return make([]bool, len(names)) })
		return fmt.Errorf("lustre: %w: %w", tiers.ErrUnavailable, err)
	}
	t.catalogue = c
	return nil
}

// Catalogue implements tiers.Files.
func (t *Tier) Catalogue() tiers.Catalogue {
	if t.catalogue == nil {
		return nil
	}
	return Catalogue{t.catalogue}
}

// Catalogue adapts a catalogue.
type Catalogue struct{ c *catalogue.Catalogue }

// Emptied says why the catalogue began empty; nil when it kept what was there.
func (c Catalogue) Emptied() error { return c.c.Emptied() }

// TuneOptions say when the index is tuned; see catalogue.TuneOptions.
type TuneOptions = catalogue.TuneOptions

// Tune has the index shaped for the work it does until ctx ends.
func (c Catalogue) Tune(ctx context.Context, o TuneOptions) error { return c.c.Tune(ctx, o) }

// TakeIn implements tiers.Catalogue.
func (c Catalogue) TakeIn(ctx context.Context, parts []tiers.Part, fn func([]tiers.Found)) (tiers.Taken, error) {
	some := make([]segment.Incarnation, len(parts))
	for i, p := range parts {
		some[i] = segment.Incarnation{Rank: p.Rank, Number: p.Incarnation}
	}
	var told []tiers.Found
	got, err := c.c.TakeIn(ctx, some, func(found []catalogue.Found) {
		told = appendInTiersWords(told[:0], found)
		fn(told)
	})
	taken := tiers.Taken{Read: got.Read, Blocks: got.Blocks, Names: got.Names, Bytes: got.Bytes, Fresh: got.Fresh, Skipped: got.Skipped}
	if err == nil {
		for _, l := range got.Left {
			taken.Left = append(taken.Left, tiers.Left(l))
		}
	}
	return taken, unavailable(err)
}

func inTiersWords(f catalogue.Found) tiers.Found {
	return tiers.Found{Info: f.Info, Name: f.Name, Dropped: f.Dropped, Segment: tiers.Segment(f.Place)}
}

func allInTiersWords(found []catalogue.Found) []tiers.Found {
	return appendInTiersWords(nil, found)
}

func appendInTiersWords(all []tiers.Found, found []catalogue.Found) []tiers.Found {
	all = slices.Grow(all, len(found))
	for _, f := range found {
		all = append(all, inTiersWords(f))
	}
	return all
}

func unavailable(err error) error {
	if err != nil {
		return fmt.Errorf("lustre: %w: %w", tiers.ErrUnavailable, err)
	}
	return nil
}

// Find implements tiers.Catalogue.
func (c Catalogue) Find(ns string, keys []string) []tiers.Found {
	return allInTiersWords(c.c.Find(ns, keys))
}

// Peek implements tiers.Catalogue.
func (c Catalogue) Peek(ns string, keys []string) []tiers.Found {
	return allInTiersWords(c.c.Peek(ns, keys))
}

// Names implements tiers.Catalogue.
func (c Catalogue) Names(fresh bool, fn func(tiers.Found) bool) error {
	return unavailable(c.c.Names(fresh, func(f catalogue.Found) bool { return fn(inTiersWords(f)) }))
}

// Withdraw implements tiers.Catalogue. It is durable as Unlink is.
func (c Catalogue) Withdraw(ctx context.Context, names ...block.Name) ([]bool, error) {
	there, err := c.c.Withdraw(ctx, names...)
	return there, unavailable(err)
}

// Forget implements tiers.Catalogue.
func (c Catalogue) Forget(ctx context.Context, ids ...block.ID) error {
	return unavailable(c.c.Forget(ctx, ids...))
}

// Err implements tiers.Catalogue.
func (c Catalogue) Err() error { return unavailable(c.c.Err()) }

// State implements tiers.Catalogue.
func (c Catalogue) State() tiers.CatalogueState {
	st := c.c.Stats()
	s := tiers.CatalogueState{
		Parts: st.Parts, Segments: st.Segments, Entries: st.Entries, Read: st.Read,
		Puts: st.Puts, Hits: st.Hits, Misses: st.Misses,
		Points: st.Points, Ranges: st.Ranges, Scanned: st.Scanned, Absent: st.Absent,
		DiskBytes: st.DiskBytes, MemoryBytes: st.MemoryBytes + uint64(max(st.CacheBytes, 0)),
		SizeRatio: st.SizeRatio, Runs: st.Runs, Retunes: st.Retunes, WriteAmp: st.WriteAmp, ReadAmp: st.ReadAmp,
	}
	if t := st.Tuning; t != nil {
		s.Tuning, s.Tuner = t.Last.Verdict.String(), tunerInTiersWords(t)
	}
	if err := c.c.Err(); err != nil {
		s.Broken = err.Error()
	}
	return s
}

func tunerInTiersWords(t *catalogue.Tuning) *tiers.Tuner {
	m := t.Last.Mix
	s := &tiers.Tuner{
		Verdicts: map[string]uint64{}, Mix: map[string]float64{"put": m.Put, "hit": m.Hit, "range": m.Range, "miss": m.Miss},
		Scanned: m.Scanned, Cost: t.Last.Before, Best: t.BestCost, BestT: t.Best.T, BestK: t.Best.K,
	}
	for v, n := range t.Verdicts {
		s.Verdicts[tuner.Verdict(v).String()] = n
	}
	return s
}
