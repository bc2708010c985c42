package remotebench

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
)

// TestRun is a small measurement of real ranks: all blocks come, and that takes time.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds and runs cascaded")
	}
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "cascadekv/cmd/cascaded").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	res, err := Run(t.Context(), Options{Blocks: 4000, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Cost{res.Once, res.Repeats} {
		if len(c.Rounds) != 2 || c.Both < 0 || c.Asker < 0 || c.Owner < 0 {
			t.Errorf("%+v", res)
		}
	}
	if res.Once.Asker+res.Repeats.Asker == 0 { // of so few, the owner's part may be below what the kernel counts
		t.Errorf("no time: %+v", res)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Blocks: -1}, {Batch: -1}, {Batch: maxBatch + 1}, {Size: 4}, {Rounds: -1}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
