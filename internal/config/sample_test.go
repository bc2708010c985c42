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

// TestSiteFiles: the files for kinds of machines are read as they are, and each says why for every key.
func TestSiteFiles(t *testing.T) {
	files, err := filepath.Glob("../../configs/*.toml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		l, err := Load(Sources{File: name, Env: []string{"HOME=/home/me", "SCRATCH=/scratch/me", "USER=me"}})
		if err != nil || len(l.Warnings) > 0 {
			t.Errorf("%s: %v, %v", name, err, l)
			continue
		}
		if name == sample {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		explained, sets := false, 0
		for line := range strings.SplitSeq(string(text), "\n") {
			switch {
			case strings.HasPrefix(line, "# "):
				explained = true
			case line == "" || strings.HasPrefix(line, "["):
				explained = false
			case !strings.HasPrefix(line, "#"):
				if sets++; !explained {
					t.Errorf("%s does not say why: %s", name, line)
				}
			}
		}
		if sets == 0 || l.Lustre.Dir == "" {
			t.Errorf("%s sets %d keys, and keeps nothing for the next run", name, sets)
		}
	}
}
