package fabricbench

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/dht/fabric"
)

func TestFabricRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"no rounds":   {MPI: "none"},
		"unknown MPI": {MPI: "lam", Rounds: 1},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%s: %v, want kit.ErrBadOption", name, err)
		}
	}
}

// TestRankCarriesOutLines runs both ranks over TCP in one process.
func TestRankCarriesOutLines(t *testing.T) {
	const secret = "of no worth to anybody"
	o := RankOptions{Folder: t.TempDir(), Bytes: 1 << 20, Out: &bytes.Buffer{}}
	other, err := tcpFabric(1, "", secret)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(runRank(t.Context(), other, o), other.Close()) }()
	f, err := tcpFabric(0, "", secret)
	if err != nil {
		t.Fatal(err)
	}
	f.SetPeer(fabric.Peer{Rank: 1, Incarnation: 1, Addr: other.Addr()})
	var out bytes.Buffer
	first := RankOptions{Folder: o.Folder, Bytes: o.Bytes, Out: &out}
	first.In = strings.NewReader("read two 4096 64 64 1\nread two 4096 64 64 32\nmove 4096 64 64 8\nidle 1000000\nquit\n")
	if err := errors.Join(runRank(t.Context(), f, first), f.Close(), <-ended); err != nil {
		t.Fatal(err)
	}
	var words []int
	for line := range strings.Lines(out.String()) {
		words = append(words, len(strings.Fields(line)))
	}
	if want := []int{1, 3, 3, 2, 1}; !slices.Equal(words, want) {
		t.Errorf("it wrote %q: %v words a line, want %v", out.String(), words, want)
	}
	r := &rank{memory: make([]byte, 4096)}
	for name, bad := range map[string][4]int{"past the end": {4096, 1, 2, 1}, "nothing": {0, 1, 1, 1}, "callers without a place": {1024, 1, 4, 5}} {
		if _, _, err := r.reads(t.Context(), bad[0], bad[1], bad[2], bad[3]); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%s: %v, want kit.ErrBadOption", name, err)
		}
	}
}
