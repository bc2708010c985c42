package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const sample = "../../configs/cascade.toml"

// commented finds a key that is commented out: prose has a space after the #.
var commented = regexp.MustCompile(`^#([a-z_]+ = .*)$`)

func TestSampleListsEveryKeyWithItsDefault(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = commented.ReplaceAllString(line, "$1")
	}
	l := &Loaded{origins: map[string]string{}}
	if err := l.apply("cascade.toml", []byte(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	defaults := Default()
	for _, k := range Keys() {
		if _, ok := l.origins[k.Path]; !ok {
			t.Errorf("the sample does not list %s", k.Path)
		}
		if got, want := k.TOML(&l.Config), k.TOML(&defaults); got != want {
			t.Errorf("the sample gives %s = %s, the default is %s", k.Path, got, want)
		}
	}
}

func TestSampleExplainsEveryKey(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	section, comment := "", ""
	for line := range strings.SplitSeq(string(text), "\n") {
		name, _, isKey := strings.Cut(strings.TrimPrefix(line, "#"), " = ")
		switch {
		case strings.HasPrefix(line, "["):
			section, comment = strings.Trim(line, "[]")+".", ""
		case strings.HasPrefix(line, "# "):
			comment += strings.TrimPrefix(line, "#")
		case commented.MatchString(line) && isKey:
			k, known := Lookup(section + name)
			word := "Immutable."
			if k.Reload {
				word = "Reloadable"
			}
			if !known || !strings.Contains(comment, word) {
				t.Errorf("%s%s: known %v; its comment %q should say %q", section, name, known, comment, word)
			}
		case line == "":
			comment = ""
		}
	}
}

func TestSampleLoadsAsItIs(t *testing.T) {
	l, err := Load(Sources{File: sample})
	if err != nil {
		t.Fatal(err)
	}
	built, err := Load(Sources{})
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(l.Config, built.Config) {
		t.Errorf("the sample with everything commented out is not the built-in configuration:\n%+v\n%+v", l.Config, built.Config)
	}
	if name := filepath.Base(l.Files[0]); name != "cascade.toml" {
		t.Errorf("Files = %v", l.Files)
	}
}
