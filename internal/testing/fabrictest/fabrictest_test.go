package fabrictest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/sim"
	"cascadekv/internal/testing/fabrictest"
)

// faulty is a right fabric with one promise broken.
type faulty struct {
	fabric.Fabric
	call func(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error)
	read func(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error
	set  func(fabric.Peer)
}

func (f *faulty) Call(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
	if f.call != nil {
		return f.call(ctx, to, req)
	}
	return f.Fabric.Call(ctx, to, req)
}

func (f *faulty) Read(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
	if f.read != nil {
		return f.read(ctx, from, src, dst)
	}
	return f.Fabric.Read(ctx, from, src, dst)
}

func (f *faulty) SetPeer(p fabric.Peer) {
	if f.set != nil {
		f.set(p)
		return
	}
	f.Fabric.SetPeer(p)
}

// faults are the broken promises, each with the test that must notice.
var faults = map[string]struct {
	test string
	of   func(f fabric.Fabric) *faulty
}{
	"the answer is the request": {"echo", func(f fabric.Fabric) *faulty {
		return &faulty{call: func(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
			if _, err := f.Call(ctx, to, req); err != nil {
				return nil, err
			}
			return req, nil
		}}
	}},
	"requests are cut": {"too large", func(f fabric.Fabric) *faulty {
		return &faulty{call: func(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
			return f.Call(ctx, to, req[:min(len(req), fabric.MaxMessage)])
		}}
	}},
	"the handler's error is no RemoteError": {"remote error", func(f fabric.Fabric) *faulty {
		return &faulty{call: func(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
			answer, err := f.Call(ctx, to, req)
			if _, ok := errors.AsType[*fabric.RemoteError](err); ok {
				err = errors.New(err.Error())
			}
			return answer, err
		}}
	}},
	"calls outlast their deadline": {"call deadline", func(f fabric.Fabric) *faulty {
		return &faulty{call: func(ctx context.Context, to fabric.Rank, req []byte) ([]byte, error) {
			end, _ := ctx.Deadline()
			late, cancel := context.WithDeadline(context.WithoutCancel(ctx), end.Add(2*time.Second))
			defer cancel()
			answer, err := f.Call(late, to, req)
			return answer, errors.Join(err, ctx.Err())
		}}
	}},
	"reads write a byte too many": {"read sizes", func(f fabric.Fabric) *faulty {
		return &faulty{read: func(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
			err := f.Read(ctx, from, src, dst)
			unsafe.Slice(unsafe.SliceData(dst), len(dst)+1)[len(dst)] = 0
			return err
		}}
	}},
	"what is stale is read": {"read stale", func(f fabric.Fabric) *faulty {
		return &faulty{read: func(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
			if err := f.Read(ctx, from, src, dst); err != nil && !errors.Is(err, fabric.ErrStale) {
				return err
			}
			return nil
		}}
	}},
	"half a block is a block": {"evict under reads", func(f fabric.Fabric) *faulty {
		return &faulty{read: func(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
			half := src
			half.Length = src.Length / 2
			if err := f.Read(ctx, from, half, dst[:half.Length]); err != nil {
				return err
			}
			time.Sleep(100 * time.Microsecond)
			half.Offset, half.Length = src.Offset+half.Length, src.Length-half.Length
			if err := f.Read(ctx, from, half, dst[src.Length/2:]); !errors.Is(err, fabric.ErrStale) {
				return err
			}
			return nil
		}}
	}},
	"reads go on after their deadline": {"read deadline", func(f fabric.Fabric) *faulty {
		return &faulty{read: func(ctx context.Context, from fabric.Rank, src fabric.Source, dst []byte) error {
			err := f.Read(ctx, from, src, dst)
			if err != nil {
				time.AfterFunc(time.Millisecond, func() { dst[len(dst)/2] = 0 })
			}
			return err
		}}
	}},
	"nobody is ever gone": {"peer gone", func(f fabric.Fabric) *faulty {
		return &faulty{set: func(p fabric.Peer) {
			p.State = fabric.Alive
			f.SetPeer(p)
		}}
	}},
}

const faultVariable = "CASCADE_FABRICTEST_FAULT"

// TestFaulty runs the suite on a fabric with a fault, in a process of its own.
func TestFaulty(t *testing.T) {
	name := os.Getenv(faultVariable)
	if name == "" {
		t.Skip("run by TestFaultsAreNoticed")
	}
	w := sim.New(sim.Options{Seed: 1, MinDelay: time.Microsecond, MaxDelay: 2 * time.Millisecond})
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Join(1, 1).Serve(p); err != nil {
		t.Fatal(err)
	}
	client := w.Join(0, 1)
	f := &faulty{}
	if name != "none" {
		f = faults[name].of(client)
	}
	f.Fabric = client
	fabrictest.Run(t, fabrictest.Config{Fabric: f, Peers: []fabric.Peer{{Rank: 1, Incarnation: 1}}})
}

// TestFaultsAreNoticed proves of each fault that the suite fails for it, and
// that the same test passes without.
func TestFaultsAreNoticed(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := run("none", fault.test); err != nil {
				t.Errorf("without a fault: %v\n%s", err, out)
			}
			out, err := run(name, fault.test)
			if want := "--- FAIL: TestFaulty/" + strings.ReplaceAll(fault.test, " ", "_"); err == nil || !strings.Contains(out, want) {
				t.Errorf("not noticed: error %v\n%s", err, out)
			}
		})
	}
}

// run runs one test of the suite on the fabric with a fault.
func run(fault, test string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", fmt.Sprintf("^TestFaulty$/^%s$", strings.ReplaceAll(test, " ", "_")))
	cmd.Env = append(os.Environ(), faultVariable+"="+fault)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
