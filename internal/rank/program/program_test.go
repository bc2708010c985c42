package program

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/config"
	"cascadekv/internal/handover"
)

// TestSuccessor: only the program that this one was started from and those that are
// configured may replace it, whatever else is safe to run.
func TestSuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		own, asked string
		listed     []string
		want       string // "": refused
	}{
		"not said":             {"/opt/1/cascaded", "", nil, "/opt/1/cascaded"},
		"the own one":          {"/opt/1/cascaded", "/opt/1/cascaded", nil, "/opt/1/cascaded"},
		"another":              {"/opt/1/cascaded", "/opt/2/cascaded", nil, ""},
		"listed":               {"/opt/1/cascaded", "/opt/2/cascaded", []string{"/opt/3/cascaded", "/opt/2/cascaded"}, "/opt/2/cascaded"},
		"not listed":           {"/opt/1/cascaded", "/opt/4/cascaded", []string{"/opt/3/cascaded", "/opt/2/cascaded"}, ""},
		"written otherwise":    {"/opt/1/cascaded", "/opt/x/../2//cascaded", []string{"/opt/2/cascaded"}, "/opt/2/cascaded"},
		"below a listed one":   {"/opt/1/cascaded", "/opt/2/cascaded/x", []string{"/opt/2/cascaded"}, ""},
		"a shell":              {"/opt/1/cascaded", "/bin/sh", nil, ""},
		"relative":             {"/opt/1/cascaded", "cascaded", nil, ""},
		"unknown, not said":    {"", "", nil, ""},
		"unknown, the folder":  {"", ".", nil, ""},
		"by another directory": {"/opt/1/cascaded", "/proc/self/exe", nil, ""},
	} {
		got, err := Program{Path: c.own}.Successor(c.asked, c.listed)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, ErrUnlisted) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// TestProgramInOthersReach: a program in a directory where everybody can replace it
// is not run.
func TestProgramInOthersReach(t *testing.T) {
	for name, c := range map[string]struct {
		mode os.FileMode
		ok   bool
	}{"own": {0o755, true}, "of a group": {0o775, true}, "open": {0o777, false}, "open, sticky": {0o777 | os.ModeSticky, true}} {
		dir := t.TempDir()
		path := filepath.Join(dir, "cascaded")
		err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700)
		if err == nil {
			err = os.Chmod(dir, c.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := suitable(path); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrBinary) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUpgradeKeepsNoOldPassword: a program that would start with another password
// is refused, since it could not tell whose connections are of the old one.
func TestUpgradeKeepsNoOldPassword(t *testing.T) {
	var c config.Config
	for name, x := range map[string]struct {
		digest, mine string
		ok           bool
	}{
		"the same":             {passwordDigest("salt", "one"), "one", true},
		"none":                 {passwordDigest("salt", ""), "", true},
		"another":              {passwordDigest("salt", "two"), "one", false},
		"none any more":        {passwordDigest("salt", ""), "one", false},
		"one, and none before": {passwordDigest("salt", "one"), "", false},
		"not told":             {"", "one", true},
	} {
		a := ability{Handover: handover.Version, Config: fixedOf(&c), Password: x.digest}
		if err := a.fits("/x", fixedOf(&c), x.mine); (err == nil) != x.ok || err != nil && !strings.Contains(err.Error(), "SIGHUP") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if strings.Contains(passwordDigest("salt", "one"), "one") {
		t.Error("a digest shows the password")
	}
}
