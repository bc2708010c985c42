package config

import (
	"errors"
	"strings"
	"testing"
)

// TestPathsAreExpanded: ~ and variables mean in a file, a variable and a flag
// what they mean to a shell, for every key that names a path.
func TestPathsAreExpanded(t *testing.T) {
	env := []string{"HOME=/home/me", "SCRATCH=/scratch/me", "USER=me", "EMPTY=", "CASCADE_NVME_BYTES=1GiB"}
	for written, want := range map[string]string{
		"~/kv":                "/home/me/kv",
		"~":                   "/home/me",
		"$SCRATCH/kv":         "/scratch/me/kv",
		"${SCRATCH}x/{rank}":  "/scratch/mex/0",
		"/a/$USER-${USER}/~":  "/a/me-me/~",
		"/costs/$$5":          "/costs/$5",
		"/p/${USER}/{uid}/$$": "",
	} {
		for _, k := range allKeys {
			if !k.path {
				continue
			}
			value := quote(written)
			if k.Type() == "list" {
				value = "[" + value + "]"
			}
			file := write(t, t.TempDir(), "c.toml", k.Path+" = "+value+"\n")
			for source, s := range map[string]Sources{
				"file":     {File: file, Env: env},
				"variable": {Env: append([]string{k.Env() + "=" + written}, env...)},
				"flag":     {Env: env, Flags: map[string]string{k.Path: written}},
			} {
				l, err := Load(s)
				if err != nil {
					t.Errorf("%s of a %s, %q: %v", k.Path, source, written, err)
					continue
				}
				if got := k.Text(&l.Config); want != "" && !strings.Contains(written, "{rank}") && got != want {
					t.Errorf("%s of a %s: %q is %q, want %q", k.Path, source, written, got, want)
				}
			}
		}
	}
	l, err := Load(Sources{Env: append(env, "CASCADE_LUSTRE_DIR=${SCRATCH}/{rank}")})
	if err != nil || l.Lustre.Dir != "/scratch/me/0" {
		t.Errorf("lustre.dir is %v, %v", l, err)
	}
	file := write(t, t.TempDir(), "c.toml", "rank = 7\n")
	if l, err = Load(Sources{File: "$PLACE/c.toml", Env: []string{"PLACE=" + strings.TrimSuffix(file, "/c.toml")}}); err != nil || l.Rank != 7 {
		t.Errorf("a file by a variable: %v", err)
	}
}

// TestPathsThatAreRefused: what a path needs and does not have is named, with
// the key and its place.
func TestPathsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		env  []string
		want []string
	}{
		"undefined":        {`lustre.dir = "$SCRATCH/kv"`, nil, []string{"FILE:1", "lustre.dir", "SCRATCH is not set"}},
		"empty":            {`lustre.dir = "${SCRATCH}/kv"`, []string{"SCRATCH="}, []string{"SCRATCH is not set, or empty"}},
		"two undefined":    {`lustre.dir = "$A/$B"`, nil, []string{"variable A", "variable B"}},
		"no home":          {`password_file = "~/pw"`, nil, []string{"password_file", "HOME is not set"}},
		"other's home":     {`lustre.dir = "~other/kv"`, nil, []string{"another user"}},
		"no name":          {`lustre.dir = "/kv/$"`, nil, []string{`"$" is no variable`}},
		"open brace":       {`lustre.dir = "/kv/${SCRATCH"`, []string{"SCRATCH=/s"}, []string{`"${SCRATCH" is no variable`}},
		"empty brace":      {`lustre.dir = "/kv/${}"`, nil, []string{`"${}" is no variable`}},
		"shell default":    {`lustre.dir = "${SCRATCH:-/tmp}"`, nil, []string{"is no variable"}},
		"relative":         {`lustre.dir = "kv"`, nil, []string{"FILE:1", "not an absolute path", "such as /", "/kv"}},
		"relative dot":     {`socket = "./rank.sock"`, nil, []string{"socket", "not an absolute path"}},
		"relative disk":    {`nvme.paths = ["/local/a", "b"]`, nil, []string{"nvme.paths", "not an absolute path"}},
		"disk twice":       {`nvme.paths = ["/local/a", "/local/a"]`, nil, []string{"nvme.paths", "names a directory twice"}},
		"no size of disks": {`nvme.paths = ["/local/a"]`, nil, []string{"nvme.bytes", "too small"}},
		"relative arena":   {`shm.path = "arena"`, nil, []string{"shm.path", "not an absolute path"}},
		"relative index":   {`lustre.index = "index"`, nil, []string{"lustre.index", "absolute path"}},
		"relative by $":    {`lustre.dir = "$KV/x"`, []string{"KV=kv"}, []string{"not an absolute path"}},
		"file undefined":   {``, []string{"CASCADE_CONFIG=$NOWHERE/c.toml"}, []string{"CASCADE_CONFIG", "NOWHERE is not set"}},
		"placeholder too":  {`socket = "{uid}/x"`, nil, []string{"not an absolute path"}},
	} {
		s := Sources{Env: c.env}
		if c.line != "" {
			s.File = write(t, t.TempDir(), "c.toml", c.line+"\n")
		}
		_, err := Load(s)
		if !errors.Is(err, ErrValue) {
			t.Errorf("%s: %v, want one that matches ErrValue", name, err)
			continue
		}
		rest := strings.ReplaceAll(err.Error(), s.File+":", "FILE:")
		for _, part := range c.want {
			_, after, found := strings.Cut(rest, part)
			if !found {
				t.Errorf("%s: %q is not in its place in: %v", name, part, err)
			}
			rest = after
		}
	}
}

// TestForeignVariables: variables of others that begin like this program's are
// ignored with a warning; one that is nearly a key is named with it.
func TestForeignVariables(t *testing.T) {
	for name, c := range map[string]struct {
		env  []string
		want []string // a part of each warning, in order
	}{
		"none": {[]string{"CASCADE_RANK=1", "CASCADE_CONFIG=", "CASCADED=1", "HOME=/"}, nil},
		"service of Kubernetes": {[]string{"CASCADE_SERVICE_HOST=10.0.0.1", "CASCADE_SERVICE_PORT=6380", "CASCADE_PORT=tcp://10.0.0.1:6380",
			"CASCADE_PORT_6380_TCP=tcp://10.0.0.1:6380", "CASCADE_PORT_6380_TCP_PROTO=tcp", "CASCADE_SERVICE_PORT_RESP=6380"},
			[]string{"CASCADE_PORT, CASCADE_PORT_6380_TCP, CASCADE_PORT_6380_TCP_PROTO, CASCADE_SERVICE_HOST"}},
		"of other programs": {[]string{"CASCADE_ROOT=/opt", "CASCADE_SHARED=1", "CASCADE_HOME=/opt"}, []string{"CASCADE_HOME, CASCADE_ROOT, CASCADE_SHARED"}},
		"misspelt":          {[]string{"CASCADE_SHM_BITES=1"}, []string{"CASCADE_SHM_BITES is ignored: did you mean CASCADE_SHM_BYTES?"}},
		"of the file":       {[]string{"CASCADE_CONFG=/x"}, []string{"did you mean CASCADE_CONFIG?"}},
		"small letters":     {[]string{"cascade_shm_bytes=1GiB"}, []string{"cascade_shm_bytes is ignored: did you mean CASCADE_SHM_BYTES?"}},
		"misspelt and not":  {[]string{"CASCADE_ROOT=/opt", "CASCADE_RANC=1"}, []string{"did you mean CASCADE_RANK?", "CASCADE_ROOT"}},
		"many": {[]string{"CASCADE_X1=", "CASCADE_X2=", "CASCADE_X3=", "CASCADE_X4=", "CASCADE_X5=", "CASCADE_X6=", "CASCADE_X7=", "CASCADE_X8=", "CASCADE_X9="},
			[]string{"CASCADE_X8 and 1 more"}},
	} {
		l, err := Load(Sources{Env: c.env})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(l.Warnings) != len(c.want) {
			t.Errorf("%s: %q, want %d warnings", name, l.Warnings, len(c.want))
			continue
		}
		for i, part := range c.want {
			if !strings.Contains(l.Warnings[i], part) {
				t.Errorf("%s: %q does not contain %q", name, l.Warnings[i], part)
			}
		}
	}
}
