package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/cli"
	"cascadekv/lustre/campaign"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

const campaignFile = "rank002-0000000000000007/agg_rank002_000000.bin"

// makeCampaign writes ten blocks of namespace a and ten of b.
func makeCampaign(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "kv")
	s, err := segment.Open(segment.Options{Dir: dir, Rank: 2, Incarnation: 7})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		p := bytes.Repeat([]byte{byte(i + 1)}, 5000)
		n := block.Name{Namespace: "ab"[i%2 : i%2+1], Key: fmt.Sprint(i), Seq: uint64(time.Now().UnixNano())}
		it := tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: 5000, CRC: block.CRC(p)}, Data: p, Names: []block.Name{n}}
		if err := s.Put(context.Background(), it); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// damage turns one byte of the eighth block over.
func damage(t *testing.T, dir string) (off int) {
	t.Helper()
	path := filepath.Join(dir, campaignFile)
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	off = bytes.Index(p, bytes.Repeat([]byte{8}, 5000))
	p[off] ^= 1
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
	return off
}

func TestFsck(t *testing.T) {
	dir := makeCampaign(t)
	if got := cascadeCommand("", nil, "fsck", dir); got.status != cli.OK || !strings.Contains(got.out, "20 blocks") || !strings.Contains(got.out, "clean") || got.err != "" {
		t.Errorf("clean: %+v", got)
	}
	off := damage(t, dir)
	if got := cascadeCommand("", nil, "fsck", dir, "--verify", "headers"); got.status != cli.OK {
		t.Errorf("headers only: %+v", got)
	}
	got := cascadeCommand("", nil, "fsck", dir)
	if place := fmt.Sprintf("%s at %d: payload", campaignFile, off); got.status != cli.Failure || !strings.Contains(got.out, place) || !strings.Contains(got.err, "1 problem; --repair") {
		t.Errorf("damaged: %+v", got)
	}
	got = cascadeCommand("", nil, "fsck", dir, "--repair", "--ids", "--json")
	var r struct {
		Clean          bool
		Problems, Left int
		Findings       []struct {
			File, Kind, Block string
			Offset            int
			Repaired          bool
		}
		Repairs []struct {
			Into          []string
			Aside         string
			Blocks, Names int
			BlocksLost    int `json:"blocks_lost"`
		}
	}
	if err := json.Unmarshal([]byte(got.out), &r); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	if got.status != cli.Failure || r.Clean || r.Left != 0 || len(r.Findings) != 2 || len(r.Repairs) != 1 || !strings.Contains(got.err, "1 repaired, 0 left") {
		t.Fatalf("repair: %+v", got)
	}
	if f := r.Findings[1]; f.File != campaignFile || f.Offset != off || f.Kind != segfile.BadPayload || !f.Repaired || f.Block == "" {
		t.Errorf("%+v", f)
	}
	if s := r.Repairs[0]; s.Blocks != 19 || s.BlocksLost != 1 || s.Names != 20 || s.Aside != campaignFile+".damaged" || len(s.Into) != 1 {
		t.Errorf("%+v", s)
	}
	if got := cascadeCommand("", nil, "fsck", dir); got.status != cli.OK || !strings.Contains(got.out, "moved aside") {
		t.Errorf("after repair: %+v", got)
	}
	if got := cascadeCommand("", nil, "fsck", dir, "--repair", "--delete"); got.status != cli.OK {
		t.Errorf("delete: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, campaignFile+".damaged")); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

func TestSegments(t *testing.T) {
	dir := makeCampaign(t)
	got := cascadeCommand("", nil, "segments", dir, "--long", "--sort", "dead")
	for _, want := range []string{campaignFile, "sealed", "CREATED", "1 segments of 1 incarnations of 1 ranks", "20 blocks", "100.0 % live under 20 names"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in %+v", want, got)
		}
	}
	damage(t, dir)
	var l campaign.Listing
	if got := cascadeCommand("", nil, "segments", dir, "--json"); json.Unmarshal([]byte(got.out), &l) != nil || l.Totals.Segments != 1 || l.Segments[0].LiveBytes != 100000 || l.Segments[0].State != segfile.StateSealed {
		t.Errorf("%+v", got)
	}
	if got := cascadeCommand("", nil, "segments", dir, "--rank", "1"); got.status != cli.OK || !strings.HasPrefix(got.out, "0 segments") {
		t.Errorf("another rank: %+v", got)
	}
}

func TestExportAndImport(t *testing.T) {
	dir, place := makeCampaign(t), t.TempDir()
	file, to := filepath.Join(place, "c.tar"), filepath.Join(place, "kv")
	if got := cascadeCommand("", nil, "export", dir, file, "--namespace", "b", "--newer-than", "1h"); got.status != cli.OK || !strings.Contains(got.out, "exported 10 blocks and 10 name records in 1 segments") {
		t.Fatalf("export: %+v", got)
	}
	if got := cascadeCommand("", nil, "export", dir, file); got.status != cli.Usage || !strings.Contains(got.err, "exists already") {
		t.Errorf("export over a file: %+v", got)
	}
	if got := cascadeCommand("", nil, "import", file, to, "--ids"); got.status != cli.OK || !strings.Contains(got.out, "imported 10 blocks") {
		t.Fatalf("import: %+v", got)
	}
	if got := cascadeCommand("", nil, "segments", to, "--json"); !strings.Contains(got.out, `"live_names": 10`) {
		t.Errorf("imported: %+v", got)
	}
	pipe := cascadeCommand("", nil, "export", dir, "-", "--json", "--live")
	if pipe.status != cli.OK || !strings.Contains(pipe.err, `"blocks": 20`) {
		t.Fatalf("export to a pipe: %d, %s", pipe.status, pipe.err)
	}
	var got campaign.Imported
	in := cascadeCommand(pipe.out, nil, "import", "-", filepath.Join(place, "other"), "--json")
	if json.Unmarshal([]byte(in.out), &got) != nil || !got.Complete || got.Blocks != 20 || in.status != cli.OK {
		t.Errorf("import from a pipe: %+v", in)
	}
	in = cascadeCommand(pipe.out[:len(pipe.out)/2], nil, "import", "-", filepath.Join(place, "cut"), "--json")
	if json.Unmarshal([]byte(in.out), &got) != nil || got.Complete || in.status != cli.Failure || !strings.Contains(in.err, "0 whole segments were kept") {
		t.Errorf("a stream that is cut off: %+v", in)
	}
	bad := []byte(pipe.out)
	bad[bytes.Index(bad, bytes.Repeat([]byte{3}, 5000))] ^= 1
	in = cascadeCommand(string(bad), nil, "import", "-", filepath.Join(place, "bad"))
	if in.status != cli.Failure || !strings.Contains(in.out, "not taken: segments/000000.bin") || !strings.Contains(in.err, "1 damaged segments") {
		t.Errorf("a stream that is damaged: %+v", in)
	}
}

func TestMistakesWithCampaigns(t *testing.T) {
	dir, one := t.TempDir(), filepath.Join(t.TempDir(), "rank002-0000000000000007")
	if err := os.Mkdir(one, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"fsck of one rank":     {[]string{"fsck", one}, "the directory above"},
		"fsck of nothing":      {[]string{"fsck", dir + "/none"}, "none"},
		"segments of nothing":  {[]string{"segments", dir + "/none"}, "none"},
		"export of nothing":    {[]string{"export", dir + "/none", dir + "/x.tar"}, "none"},
		"import of nothing":    {[]string{"import", dir + "/none.tar", dir}, "none.tar"},
		"import into nowhere":  {[]string{"import", "-", "/dev/null/x"}, "not a directory"},
		"fsck without a place": {[]string{"fsck"}, "cascade fsck DIR"},
		"force alone":          {[]string{"fsck", dir, "--force"}, "--repair"},
		"ids of headers":       {[]string{"fsck", dir, "--ids", "--verify", "headers"}, "--verify payloads"},
		"verify what":          {[]string{"fsck", dir, "--verify", "all"}, "headers or payloads"},
		"no jobs":              {[]string{"fsck", dir, "--jobs", "0"}, "--jobs"},
		"unknown order":        {[]string{"segments", dir, "--sort", "x"}, "created"},
		"no time":              {[]string{"export", dir, dir + "/x.tar", "--newer-than", "soon"}, "duration"},
	} {
		t.Run(name, func(t *testing.T) {
			got := cascadeCommand("", nil, tc.args...)
			if got.status != cli.Usage || !strings.Contains(got.err, tc.want) || got.out != "" {
				t.Errorf("%+v; want %q and status 2", got, tc.want)
			}
		})
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}
