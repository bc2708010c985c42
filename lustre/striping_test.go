package lustre

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"cascadekv/lustre/layout"
	"cascadekv/tiers"
)

// granting is a layouter of which the newest file is known.
type granting struct{ reports []layout.Report }

func (*granting) Prepare(string) {}

func (*granting) Describe(string) string { return "" }

func (g *granting) Last() (r layout.Report, ok bool) {
	if len(g.reports) == 0 {
		return r, false
	}
	return g.reports[len(g.reports)-1], true
}

func TestStriping(t *testing.T) {
	g := &granting{}
	o := Options{Dir: t.TempDir(), Layout: g}
	tr, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if got := tr.striping(); got != nil {
		t.Errorf("before the first file: %+v", got)
	}
	part := layout.Part{Component: layout.Component{Count: 2, Size: 4 << 20}, Objects: []layout.Object{{OST: 7}, {OST: 9}}}
	granted := layout.Granted{Parts: []layout.Part{part}}
	asked := layout.Plain(16, 0, "")
	for _, c := range []struct {
		report layout.Report
		want   tiers.Striping
		same   bool
	}{
		{layout.Report{Path: "f", Granted: granted}, tiers.Striping{Asked: "the file system's default", Granted: "-c 2 -S 4M"}, true},
		{layout.Report{Path: "f", Asked: asked, Granted: granted, Differences: layout.Compare(asked, granted)},
			tiers.Striping{Asked: "-c 16", Granted: "-c 2 -S 4M", Differences: []string{"2 stripes instead of 16 stripes"}}, false},
		{layout.Report{Path: "f", Asked: asked, Err: errors.New("no such luck")}, tiers.Striping{Asked: "-c 16", Error: "no such luck"}, false},
	} {
		g.reports = append(g.reports, c.report)
		got := *tr.striping()
		for i, d := range got.Differences { // and what lies behind them
			got.Differences[i], _, _ = strings.Cut(d, ":")
		}
		if !reflect.DeepEqual(got, c.want) || got.AsAsked() != c.same {
			t.Errorf("%+v, want %+v, as asked: %v", got, c.want, c.same)
		}
	}
	plain, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if got := plain.striping(); got != nil {
		t.Errorf("nobody lays files out: %+v", got)
	}
}
