package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/cmd/cascade/campaigns"
	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/lustre/layout"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// onLustre makes a directory on a real Lustre.
func onLustre(t *testing.T) string {
	t.Helper()
	root := os.Getenv("CASCADE_LUSTRE")
	if root == "" {
		t.Skip("CASCADE_LUSTRE names no directory on Lustre: make test-lustre brings one up")
	}
	dir, err := os.MkdirTemp(root, "cascade-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestLustrePlan(t *testing.T) {
	for name, tc := range map[string]struct {
		env  []string
		want string
	}{
		"nothing set": {[]string{"CASCADE_LUSTRE_DIR=/no/such"}, `# no striping key is set: segments get the layout that their directory gives new files
# note: /no/such does not exist yet: cascaded makes it
`},
		"keys": {[]string{"CASCADE_LUSTRE_DIR=/no/such kv", "CASCADE_LUSTRE_STRIPE_COUNT=16", "CASCADE_LUSTRE_STRIPE_SIZE=4m", "CASCADE_LUSTRE_POOL=flash"},
			`# each rank sets this on the directories that it makes; with the keys left empty,
# one command does it for every rank and job that starts from now on:
lfs setstripe -c 16 -S 4M -p flash '/no/such kv'
# note: /no/such kv does not exist yet: cascaded makes it
`},
		"a line, no directory": {[]string{"CASCADE_LUSTRE_SETSTRIPE=-E 64M -c1 -E -1 -c 80 -S 4m"},
			`# each rank sets this on the directories that it makes; with the keys left empty,
# one command does it for every rank and job that starts from now on:
lfs setstripe -E 64M -c 1 -E eof -c 80 -S 4M DIR
# note: 80 stripes: above 72 sites advise against it; each file then waits for its slowest OST
# note: lustre.dir is not set: there is no lustre tier
`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := cascadeCommand("", tc.env, "lustre", "plan"); got.status != cli.OK || got.out != tc.want {
				t.Errorf("%d\n%s%s", got.status, got.out, got.err)
			}
		})
	}
	var p campaigns.StripePlan
	got := cascadeCommand("", []string{"CASCADE_LUSTRE_DIR=/no/such", "CASCADE_LUSTRE_STRIPE_COUNT=4"}, "lustre", "plan", "--json")
	if err := json.Unmarshal([]byte(got.out), &p); err != nil || p.Layout != "-c 4" || len(p.Commands) != 1 || p.Commands[0] != "lfs setstripe -c 4 /no/such" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestLustreElsewhere(t *testing.T) {
	dir := t.TempDir()
	if i, err := layout.Detect(dir); err != nil || i.Lustre {
		t.Skipf("the directory for temporary files is on Lustre: %v", err)
	}
	env := []string{"CASCADE_LUSTRE_DIR=" + dir, "CASCADE_LUSTRE_STRIPE_COUNT=4"}
	if got := cascadeCommand("", env, "lustre", "plan", "--try"); got.status != cli.OK || !strings.Contains(got.out, "the striping keys have no effect there") {
		t.Errorf("plan --try: %+v", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v: %v", left, err)
	}
	if got := cascadeCommand("", nil, "lustre", "show", dir); got.status != cli.OK || !strings.Contains(got.out, "not on a Lustre file system") {
		t.Errorf("show: %+v", got)
	}
	var s campaigns.Layouts
	got := cascadeCommand("", nil, "lustre", "show", dir, "--json")
	if err := json.Unmarshal([]byte(got.out), &s); err != nil || s.Lustre || s.Dir != dir || s.Groups == nil {
		t.Errorf("show --json: %+v, %v", s, err)
	}
}

func TestLustreUsage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[lustre]\nsetstripe = \"-c 4 -i 3\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := []string{"CASCADE_LUSTRE_SETSTRIPE=-c 4 -S 100000"}
	for name, tc := range map[string]struct {
		env    []string
		args   []string
		status int
		want   []string
	}{
		"bad line":         {bad, []string{"lustre", "plan"}, cli.Usage, []string{"environment CASCADE_LUSTRE_SETSTRIPE", "-S 100000: not a multiple of 64 KiB", "4m"}},
		"bad line, check":  {nil, []string{"config", "check", file}, cli.Failure, []string{file + ":2: lustre.setstripe", "-i 3: every segment would begin on one OST", "man lfs-setstripe"}},
		"try without dir":  {nil, []string{"lustre", "plan", "--try"}, cli.Usage, []string{"set lustre.dir"}},
		"try, dir missing": {[]string{"CASCADE_LUSTRE_DIR=/no/such"}, []string{"lustre", "plan", "--try"}, cli.Failure, []string{"/no/such"}},
		"show nothing":     {nil, []string{"lustre", "show"}, cli.Usage, []string{"DIR"}},
		"show no dir":      {nil, []string{"lustre", "show", "/no/such"}, cli.Failure, []string{"/no/such"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := cascadeCommand("", tc.env, tc.args...)
			if got.status != tc.status {
				t.Errorf("%+v, want status %d", got, tc.status)
			}
			for _, part := range tc.want {
				if !strings.Contains(got.err, part) {
					t.Errorf("%q does not say %q", got.err, part)
				}
			}
		})
	}
}

func TestLustreVerbsOnLustre(t *testing.T) {
	dir := onLustre(t)
	env := []string{"CASCADE_LUSTRE_DIR=" + dir, "CASCADE_LUSTRE_STRIPE_COUNT=2", "CASCADE_LUSTRE_STRIPE_SIZE=1m"}
	got := cascadeCommand("", env, "lustre", "plan", "--try")
	if got.status != cli.OK || !strings.Contains(got.out, "# a file was granted: -c 2 -S 1M on OST ") || !strings.Contains(got.out, dir+" is on Lustre ") {
		t.Errorf("plan --try: %+v", got)
	}
	env[1] = "CASCADE_LUSTRE_STRIPE_COUNT=40"
	if got := cascadeCommand("", env, "lustre", "plan", "--try"); got.status != cli.Failure || !strings.Contains(got.out, "2 stripes instead of 40 stripes") {
		t.Errorf("too many: %+v", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v: %v", left, err)
	}
	if got := cascadeCommand("", nil, "lustre", "show", dir); got.status != cli.OK || !strings.Contains(got.out, "no segments") {
		t.Errorf("show of an empty directory: %+v", got)
	}
	for i, asked := range []layout.Layout{layout.Plain(2, 1<<20, ""), layout.Plain(1, 0, "")} {
		s, err := segment.Open(segment.Options{Dir: dir, Rank: uint32(i), SegmentBlocks: 1, Layout: layout.NewStriper(asked, nil)})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 - i {
			data := make([]byte, 5000+100*i+n)
			info := block.Info{ID: block.Sum(block.Bits128, data), Size: int64(len(data)), CRC: block.CRC(data)}
			if err := s.Put(context.Background(), tiers.Item{Info: info, Data: data}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	got = cascadeCommand("", nil, "lustre", "show", dir, "--json")
	var s campaigns.Layouts
	if err := json.Unmarshal([]byte(got.out), &s); err != nil || s.Files != 5 || len(s.Groups) != 2 || len(s.Skipped) != 0 {
		t.Fatalf("show: %+v, %v", got, err)
	}
	if g := s.Groups[0]; g.Layout != "-c 2 -S 1M" || g.Files != 3 || g.OSTs[0] != 3 || g.OSTs[1] != 3 {
		t.Errorf("first group %+v", g)
	}
	if g := s.Groups[1]; g.Layout != "-c 1 -S 4M" || g.Files != 2 || g.OSTs[0]+g.OSTs[1] != 2 {
		t.Errorf("second group %+v", g)
	}
}
