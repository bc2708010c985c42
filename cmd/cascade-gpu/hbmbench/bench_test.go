package hbmbench

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/gpu/cuda"
	"cascadekv/internal/testing/fakecuda"
)

func TestMain(m *testing.M) { os.Exit(fakecuda.Main(m)) }

// retain returns the GPU of the stand-in.
func retain(t *testing.T) *cuda.Context {
	t.Helper()
	d, err := cuda.Open(fakecuda.Library(t))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Retain()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func small(c *cuda.Context) Options {
	return Options{Context: c, BlockBytes: 12 << 10, Bytes: 120 << 10, Rounds: 2, Entries: 100}
}

// TestRun: all bytes come back by each way, and all memory is given back. It judges
// no figure.
func TestRun(t *testing.T) {
	c := retain(t)
	before, _, _ := c.MemInfo()
	o, rounds := small(c), 0
	o.Progress = func(int, int) { rounds++ }
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if after, _, _ := c.MemInfo(); after != before {
		t.Errorf("%d bytes of device memory are gone", before-after)
	}
	text, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors != 0 || rounds != 2 || res.Hash.One.MBps <= 0 || res.Hash.All.MBps <= 0 || res.Hash.InsertNs <= 0 || res.Hash.LookupNs <= 0 {
		t.Errorf("%d rounds, %s", rounds, text)
	}
	for what, w := range map[string]Way{"plain": res.Plain, "batch": res.Batch, "direct": res.Direct, "bounced": res.Bounced} {
		if w.ToGPU.MBps <= 0 || w.FromGPU.MBps <= 0 || w.RatioToGPU <= 0 || w.RatioFromGPU <= 0 {
			t.Errorf("%s: %+v", what, w)
		}
	}
	if res.Plain.RatioToGPU != 1 || res.Plain.RatioFromGPU != 1 {
		t.Errorf("plain over itself: %+v", res.Plain)
	}
}

// TestOtherBytes: a block that comes back changed is counted.
func TestOtherBytes(t *testing.T) {
	o := small(nil)
	b := &bench{o: o, order: make([]int, 10)}
	m := memory{make([]byte, o.Bytes), make([]byte, o.Bytes)}
	b.change(m.out)
	copy(m.back, m.out)
	if b.compare(m); b.errors != 0 {
		t.Errorf("%d errors in equal bytes", b.errors)
	}
	m.back[o.Bytes-1] ^= 1
	if b.compare(m); b.errors != 1 {
		t.Errorf("%d errors with a flipped bit", b.errors)
	}
	b.errors = 0
	b.change(m.out)
	if b.compare(m); b.errors != 10 {
		t.Errorf("%d of 10 blocks of the turn before were noticed", b.errors)
	}
}

// TestFailures: what the driver refuses is reported, and nothing stays taken.
func TestFailures(t *testing.T) {
	c := retain(t)
	before, _, _ := c.MemInfo()
	for _, rules := range []string{"cuMemAlloc_v2=2", "cuMemAlloc_v2=2@2", "cuMemHostRegister_v2=801@2", "cuStreamCreateWithPriority=2@5", "cuMemcpyHtoDAsync_v2=1"} {
		t.Run(rules, func(t *testing.T) {
			fakecuda.Rules(t, rules)
			if _, err := Run(t.Context(), small(c)); err == nil {
				t.Error("no error")
			} else if _, is := errors.AsType[*cuda.Error](err); !is {
				t.Errorf("not of the driver: %v", err)
			}
		})
	}
	if after, _, _ := c.MemInfo(); after != before {
		t.Errorf("%d bytes of device memory are gone", before-after)
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{BlockBytes: 100}, {BlockBytes: 8192, Bytes: 12 << 10}, {Rounds: -1}, {Entries: -1}, {Bytes: -2 << 20}} {
		if _, err := Run(t.Context(), o); !errors.Is(err, kit.ErrBadOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
