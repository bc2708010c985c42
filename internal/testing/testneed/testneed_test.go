package testneed

import (
	"fmt"
	"testing"
)

// outcome is a test that records how it ended.
type outcome struct {
	testing.TB
	said string
}

func (o *outcome) Helper()                      {}
func (o *outcome) Fatalf(f string, args ...any) { o.said = "fatal: " + fmt.Sprintf(f, args...) }
func (o *outcome) Skipf(f string, args ...any)  { o.said = "skip: " + fmt.Sprintf(f, args...) }

func TestProgram(t *testing.T) {
	const absent = "no-program-has-this-name"
	for name, c := range map[string]struct {
		ci, program string
		want        string
	}{
		"there":            {"true", "go", ""},
		"missing":          {"", absent, "skip: " + absent + " is missing: make tools"},
		"missing in CI":    {"true", absent, "fatal: " + absent + " is missing: make tools"},
		"CI switched off":  {"false", absent, "skip: " + absent + " is missing: make tools"},
		"there without CI": {"", "go", ""},
	} {
		t.Setenv("CI", c.ci)
		o := &outcome{TB: t}
		path := Program(o, c.program, "make tools")
		if o.said != c.want || (path != "") != (c.want == "") {
			t.Errorf("%s: %q at %q, want %q", name, o.said, path, c.want)
		}
	}
}
