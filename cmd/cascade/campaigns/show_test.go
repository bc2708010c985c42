package campaigns

import (
	"errors"
	"strings"
	"testing"
)

// broken fails every write.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestLustreShowPrintsGroups(t *testing.T) {
	var out, complaints strings.Builder
	tool := &Tool{Out: &out, Err: &complaints}
	err := tool.printLayouts(Layouts{
		Dir: "/s/kv", FileSystem: "Lustre scratch", Lustre: true, Client: "2.15.5", Default: "-c 2", Files: 13,
		Groups: []LayoutGroup{
			{Layout: "-c 2 -S 4M", Files: 12, OSTs: map[int]int{10: 12, 3: 12}, First: "/s/kv/rank000-1/agg_rank000_000000.bin"},
			{Layout: "-c 1 -S 4M", Files: 1, OSTs: map[int]int{}, First: "/s/kv/rank001-1/agg_rank001_000000.bin"},
		},
		Skipped: []string{"/s/kv/rank001-1/agg_rank001_000001.bin: no objects yet"},
	})
	want := `/s/kv is on Lustre scratch, client 2.15.5; default for new files: -c 2
FILES  LAYOUT      STRIPES ON OST  FIRST FILE
12     -c 2 -S 4M  3:12 10:12      rank000-1/agg_rank000_000000.bin
1      -c 1 -S 4M  -               rank001-1/agg_rank001_000000.bin
`
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, &out)
	}
	if !strings.Contains(complaints.String(), "no objects yet") {
		t.Errorf("complaints: %q", &complaints)
	}
	tool.Out = broken{}
	if err := tool.printLayouts(Layouts{Lustre: true}); err == nil {
		t.Error("a broken pipe goes unnoticed")
	}
}
