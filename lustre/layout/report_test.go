package layout

import (
	"errors"
	"strings"
	"testing"
)

// granted makes a layout as a file has it from setstripe options.
func granted(t *testing.T, line string) Granted {
	t.Helper()
	l, err := Parse(line)
	if err != nil {
		t.Fatal(err)
	}
	g := Granted{Composite: l.Composite(), Mirrors: 1}
	for _, c := range l.Components {
		g.Parts = append(g.Parts, Part{Component: c})
	}
	return g
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, granted string // "" for the zero layout
		want           []Kind
	}{
		"nothing asked":            {"", "-c 1 -S 4m", nil},
		"as asked":                 {"-c 2 -S 8m -p flash", "-c 2 -S 8m -p flash", nil},
		"defaults filled in":       {"-c 2", "-c 2 -S 4m", nil},
		"all OSTs":                 {"-c -1", "-c 2 -S 4m", nil},
		"so many on each OST":      {"-C -2", "-C 4 -S 4m", nil},
		"ignore is no pool":        {"-p ignore -c 1", "-c 1 -S 4m", nil},
		"count clamped":            {"-c 40 -S 8m", "-c 2 -S 8m", []Kind{Fewer}},
		"count raised":             {"-c 1 -S 8m", "-c 2 -S 8m", []Kind{More}},
		"other size":               {"-c 1 -S 8m", "-c 1 -S 4m", []Kind{OtherSize}},
		"no pool":                  {"-c 1 -p flash", "-c 1 -S 4m", []Kind{OtherPool}},
		"other pool and fewer":     {"-c 4 -S 4m -p flash", "-c 1 -S 4m -p disk", []Kind{Fewer, OtherPool}},
		"ignored":                  {"-c 4 -S 8m", "-c 1 -S 4m", []Kind{Ignored}},
		"ignored with pool":        {"-c 4 -S 8m -p flash", "-c 1 -S 4m", []Kind{Ignored}},
		"one thing asked":          {"-c 4", "-c 1 -S 4m", []Kind{Fewer}},
		"no default, none asked":   {"-c 0", "none", nil},
		"no default, one asked":    {"-c 2", "none", []Kind{Ignored}},
		"no default, components":   {"-E eof -c 2", "none", []Kind{Ignored}},
		"components ignored":       {"-E 64M -c 1 -E eof -c 2", "-c 1 -S 4m", []Kind{Ignored}},
		"components where none":    {"-c 1", "-E eof -c 1", []Kind{Ignored}},
		"other number":             {"-E 1M -L mdt -E eof -c 2", "-E eof -c 2", []Kind{Components}},
		"other ends":               {"-E 64M -c 1 -E eof -c 2", "-E 1M -c 1 -E eof -c 2", []Kind{Components}},
		"not on the MDT":           {"-E 1M -L mdt -E eof -c 2", "-E 1M -c 1 -S 1M -E eof -c 2", []Kind{Elsewhere}},
		"second component clamped": {"-E 64M -c 1 -E eof -c 40", "-E 64M -c 1 -S 4m -E eof -c 2 -S 4m", []Kind{Fewer}},
		"component not placed yet": {"-E 64M -c 1 -E eof -c 40", "-E 64M -c 1 -S 4m -E eof -c 40 -S 4m", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked Layout
			if tc.asked != "" {
				asked = granted(t, tc.asked).Layout()
			}
			var has Granted
			if tc.granted != "none" {
				has = granted(t, tc.granted)
			}
			got := Compare(asked, has)
			if len(got) != len(tc.want) {
				t.Fatalf("got %v, want kinds %v", got, tc.want)
			}
			for i, d := range got {
				if d.Kind != tc.want[i] || d.Asked == "" || d.Granted == "" || why[d.Kind] == "" {
					t.Errorf("got %+v, want kind %q", d, tc.want[i])
				}
			}
		})
	}
}

func TestReportsRead(t *testing.T) {
	asked := granted(t, "-E 64M -c 1 -E eof -c 40").Layout()
	r := Report{Path: "/s/f", Asked: asked, Striped: true, Granted: granted(t, "-E 64M -c 1 -S 4m -E eof -c 2 -S 4m")}
	r.compare()
	for _, part := range []string{"/s/f: asked for -E 64M -c 1 -E eof -c 40, has -E 64M -c 1 -S 4M", "component 2: 2 stripes instead of 40 stripes", "lfs osts"} {
		if !strings.Contains(r.String(), part) {
			t.Errorf("%q does not say %q", r, part)
		}
	}
	if r.OK() {
		t.Error("a report with differences is OK")
	}
	if r := (Report{Path: "/s/f", Asked: asked}); !r.OK() || !strings.Contains(r.String(), "no striping on this file system") {
		t.Errorf("elsewhere: %v", r)
	}
	if r := (Report{Path: "/s/d", Striped: true}); !strings.Contains(r.String(), "asked for the file system's default, has no layout") {
		t.Errorf("no default: %v", r)
	}
	refused := &RefusedError{"/s/f", asked, errors.New("x")}
	if r := (Report{Path: "/s/f", Asked: asked, Striped: true, Err: refused}); r.OK() || !strings.Contains(r.String(), "setstripe -E 64M") {
		t.Errorf("refused: %v", r)
	}
}
