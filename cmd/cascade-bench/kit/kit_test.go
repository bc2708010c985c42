package kit

import (
	"errors"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMedian(t *testing.T) {
	for name, c := range map[string]struct {
		in   []float64
		want float64
	}{
		"nothing": {nil, 0},
		"one":     {[]float64{3}, 3},
		"odd":     {[]float64{9, 1, 5}, 5},
		"even":    {[]float64{4, 1, 3, 2}, 2.5},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Median(c.in); got != c.want {
				t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
			}
		})
	}
}

func TestRoundIsFiniteForJSON(t *testing.T) {
	if Round(math.Inf(1)) != 0 || Round(math.NaN()) != 0 || Round(1.23456) != 1.2346 {
		t.Error(Round(math.Inf(1)), Round(math.NaN()), Round(1.23456))
	}
}

// TestWritten: what a process leaves on a disk is counted.
func TestWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(file), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skipf("the folder for temporary files is in memory (%v): set TMPDIR to one on a disk", err)
	}
	p, err := Start("writer", io.Discard, exec.Command("sh", "-c", `dd if=/dev/zero of="$0" bs=65536 count=4 2>/dev/null; exec sleep 60`, file))
	if err != nil {
		t.Fatal(err)
	}
	var written uint64
	if err := Until(t.Context(), time.Millisecond, time.Minute, func() (_ bool, err error) {
		written, err = p.Written() // dd's too, once the shell has waited for it
		return written >= 4*65536, errors.Join(err, p.Alive())
	}); err != nil {
		t.Errorf("%d bytes, %v", written, err)
	}
	if err := p.Stop(); err == nil {
		t.Error("terminated without an error")
	}
	if _, err := p.Written(); err == nil {
		t.Error("a process that has ended has written something")
	}
}

// TestProcess: one that works uses CPU time and has output, and is terminated.
func TestProcess(t *testing.T) {
	p, err := Start("loop", io.Discard, exec.Command("sh", "-c", "echo hello; while :; do :; done"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Until(t.Context(), time.Millisecond, time.Minute, func() (bool, error) {
		used, err := p.CPU()
		return used >= Tick && p.Output() == "hello", errors.Join(err, p.Alive())
	}); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "terminated") || !strings.Contains(err.Error(), "hello") {
		t.Errorf("stopped with %v", err)
	}
	if err := p.Alive(); !errors.Is(err, ErrStart) {
		t.Errorf("ended, and %v", err)
	}
	if _, err := p.CPU(); err == nil {
		t.Error("a process that has ended has CPU time")
	}
	if _, err := Start("nothing", io.Discard, exec.Command("/nonexistent")); !errors.Is(err, ErrStart) {
		t.Errorf("got %v, want %v", err, ErrStart)
	}
}

func TestStampsNeverRepeat(t *testing.T) {
	v, err := NewValues(1, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	seen := map[string]bool{}
	for range 3 {
		first := v.Stamps(5)
		for i := range uint64(5) {
			Stamp(v.At(0), first+i+1)
			seen[string(v.At(0))] = true
		}
	}
	if len(seen) != 15 {
		t.Errorf("%d contents in 15 puts", len(seen))
	}
}

func TestMachineIsNamed(t *testing.T) {
	if m := ReadMachine(); m.CPU == "" || m.CPUs < 1 || m.Memory == 0 || m.Kernel == "" || m.LoadAvg == "" {
		t.Errorf("%+v", m)
	}
}

// TestTurns: each way is measured once in a round, another one first each time,
// and an error ends it.
func TestTurns(t *testing.T) {
	var order []int
	finished := 0
	rates, err := Turns(3, 2, func(round, way int) (float64, error) {
		order = append(order, way)
		return float64(10*way + round), nil
	}, func() { finished++ })
	if err != nil || finished != 3 || !slices.Equal(order, []int{0, 1, 1, 0, 0, 1}) {
		t.Errorf("order %v, %d rounds finished, %v", order, finished, err)
	}
	if !slices.Equal(rates[0], []float64{0, 1, 2}) || !slices.Equal(rates[1], []float64{10, 11, 12}) {
		t.Errorf("rates %v", rates)
	}
	if _, err := Turns(1, 1, func(int, int) (float64, error) { return 0, ErrWrong }, func() {}); !errors.Is(err, ErrWrong) {
		t.Errorf("got %v, want %v", err, ErrWrong)
	}
}
