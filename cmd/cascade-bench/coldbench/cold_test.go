package coldbench

import (
	"errors"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
)

func TestRun(t *testing.T) {
	res, err := Run(t.Context(), Options{Blocks: 4 * chain, Samples: 5, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if res.Blocks != 4*chain || res.Names != 3 || res.Probe <= 0 || res.Get <= 0 || res.Read <= 0 || res.StartSeconds <= 0 {
		t.Errorf("%+v", res)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Blocks: 5}, {Names: -1}, {Size: 4}, {Samples: -1}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
