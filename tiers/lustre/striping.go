package lustre

import (
	"cascadekv/lustre/layout"
	"cascadekv/tiers"
)

// reporter is a segment.Layouter that knows what the newest file was granted;
// layout.Striper is one.
type reporter interface {
	Last() (layout.Report, bool)
}

var _ reporter = (*layout.Striper)(nil)

// striping describes the newest file, nil before the first. It leaves out which
// servers the file lies on: they differ from file to file.
func (t *Tier) striping() *tiers.Striping {
	r, ok := t.layout.(reporter)
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
