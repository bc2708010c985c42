package gio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cascadekv/internal/testing/race"
)

// ptxRun is a region whose device is the kernel.
type ptxRun struct {
	q     *Queue
	state []byte // the device's memory
	round atomic.Uint32
	ended chan struct{}
	err   error // of the interpreter, once it has ended
}

// runPTX serves a region with an engine and runs a kernel as its device.
func runPTX(t *testing.T, text, engine string, faults bool, seed uint64, patience time.Duration) (*ptxRun, func()) {
	t.Helper()
	p, err := parsePTX(text)
	if err != nil {
		t.Fatal(err)
	}
	r := &ptxRun{ended: make(chan struct{})}
	o := Options{Depth: 2, NumIOCTX: 64, Files: []*os.File{testFile(t, os.O_RDONLY)}, DataBytes: dataBytes, Engine: engine, Workers: 4}
	if faults {
		o.Fault = func(io IO) Fault { return ptxFault(io.Index, r.round.Load()) }
	}
	s, err := Serve(o)
	if err != nil {
		t.Fatal(err)
	}
	r.q = s.Queue()
	const region, device = 1 << 40, 1 << 41
	r.state = make([]byte, KernelStateBytes(MaxDepth))
	mem := &ptxMemory{release: map[uint64]ptxView{}, parts: []ptxPart{{region, r.q.r.mem, true}, {device, r.state, false}}}
	m := newPTXMachine(p, mem, 1+o.Depth, rand.New(rand.NewPCG(seed, 1)), region, device, uint64(patience))
	go func() {
		defer close(r.ended)
		r.err = m.run()
	}()
	return r, func() {
		r.q.StopDevice()
		<-r.ended
		if r.err == nil && r.q.r.h.device.Load() != deviceEnded {
			t.Error("the device did not report its end")
		}
		if err := r.q.Close(); err != nil {
			t.Error(err)
		}
		closeServer(t, s)
	}
}

func ptxFault(index int, round uint32) (f Fault) {
	switch (index + int(round)) % 7 {
	case 3:
		f.Errno = unix.EIO
	case 5:
		f.Short = 4096
	}
	return f
}

// drive does rounds of reads and reports the first that did not end as it had to.
// The last writer of what to read is whoever raises the event, and the host's
// entries are gone by then: what is read is what the kernel wrote.
func (r *ptxRun) drive(rounds int, faults bool) error {
	q := r.q
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { <-r.ended; cancel() }()
	for round := range uint32(rounds) {
		r.round.Store(round)
		got, err := q.GetIOCB(2, &Event{1, round + 1})
		if err != nil {
			return err
		}
		clear(q.Data())
		var ids []uint32
		num := []int{1 + int(round*13)%64, 64 - int(round)%3}
		for k, b := range got {
			fill(b, int(round)+k, num[k], Read)
			ids = append(ids, b.ID)
		}
		q.perSM = 7 // of the rounds that have a bound
		if err := q.IssueIO(ids, int(round)%2); err != nil {
			return err
		}
		for k, b := range got {
			r.started(ctx, b.ID, round+1)
			clear(q.r.slots[b.ID].sqes)
			fill(b, int(round)+k+5, num[k], Read)
		}
		q.Word(1).Store(round + 1)
		for k, b := range got {
			if err := r.end(ctx, b, num[k], round, faults); err != nil {
				return fmt.Errorf("round %d, IOCB %d: %w", round, b.ID, err)
			}
		}
		if err := q.Release(ids...); err != nil {
			return err
		}
	}
	return nil
}

// started waits until the kernel has an IOCB for the n-th time, and may have read
// what it is to do.
func (r *ptxRun) started(ctx context.Context, id, n uint32) {
	word := (*uint32)(unsafe.Pointer(&r.state[64+256*int(id)]))
	for atomic.LoadUint32(word) != n && ctx.Err() == nil {
		time.Sleep(20 * time.Microsecond)
	}
}

// end waits for one IOCB, and compares all of its outcome.
func (r *ptxRun) end(ctx context.Context, b *IOCB, n int, round uint32, faults bool) error {
	err := r.q.WaitCQE(ctx, b.ID)
	failed, want := &IOError{}, 0
	for i := range n {
		bad := faults && ptxFault(i, round) != Fault{}
		if bad {
			want++
		}
		if b.Failed(i) != bad {
			return fmt.Errorf("I/O %d: failed is %v: %w", i, !bad, err)
		}
		if got := r.q.Data()[cell(b, i):][:blockBytes]; !bad && !bytes.Equal(got, pattern(b.Ctx[i].Offset, blockBytes)) {
			return fmt.Errorf("I/O %d read other bytes: %w", i, err)
		}
	}
	switch {
	case want == 0:
		return err
	case !errors.As(err, &failed) || failed.Failed != want:
		return fmt.Errorf("want %d failures: %w", want, err)
	}
	if f := ptxFault(failed.First, round); failed.Errno != f.Errno || f.Short != 0 && failed.Bytes != blockBytes-4096 {
		return fmt.Errorf("another first failure: %w", err)
	}
	return nil
}

// ptxRounds is small under the race detector, which makes the interpreter slow.
func ptxRounds() int {
	if race.On || testing.Short() {
		return 3
	}
	return 8
}

// TestPTX: the checked-in text drives both engines; all bytes are compared.
func TestPTX(t *testing.T) {
	bothEngines(t, func(t *testing.T, engine string) {
		for seed := range uint64(2) {
			r, end := runPTX(t, kernelPTX, engine, false, seed, time.Minute)
			if err := r.drive(ptxRounds(), false); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			end()
			if r.err != nil {
				t.Fatalf("seed %d: %v", seed, r.err)
			}
		}
	})
}

// TestPTXFaults: I/Os that fail or come to less are reported, each of them.
func TestPTXFaults(t *testing.T) {
	for seed := range uint64(3) {
		r, end := runPTX(t, kernelPTX, EngineUser, true, seed, time.Minute)
		if err := r.drive(ptxRounds(), true); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		end()
		if r.err != nil {
			t.Fatal(r.err)
		}
	}
}

// TestPTXPatience: a kernel for which nothing happens ends, as does one whose
// block has not a warp for each IOCB.
func TestPTXPatience(t *testing.T) {
	r, end := runPTX(t, kernelPTX, EngineUser, false, 1, time.Millisecond)
	<-r.ended
	if r.err != nil || r.q.r.h.device.Load() != deviceEnded {
		t.Errorf("%v, device %d", r.err, r.q.r.h.device.Load())
	}
	end()
	r, end = runPTX(t, strings.ReplaceAll(kernelPTX, "%ntid.x", "64"), EngineUser, false, 1, time.Hour)
	<-r.ended
	if r.err != nil || r.q.r.h.device.Load() != deviceEnded {
		t.Errorf("%v, device %d", r.err, r.q.r.h.device.Load())
	}
	end()
}

// ptxOrders are the ordered accesses of the kernel, in the order of its text, and
// whether what each orders can be seen. Those of which it cannot end the kernel,
// or hand over nothing but their own value.
var ptxOrders = []struct {
	from, to string
	seen     []string // "" for one that orders nothing
}{
	{"ld.acquire.sys.u32", "ld.relaxed.sys.u32", []string{"", "SQ's tail", "event", "slot's CQ tail"}},
	{"st.release.sys.u32", "st.relaxed.sys.u32", []string{"", "CQ's tail", "", "slot's SQ tail"}},
	{"ld.acquire.gpu.u32", "ld.relaxed.gpu.u32", []string{"done", "start", "", "", ""}},
	{"st.release.gpu.u32", "st.relaxed.gpu.u32", []string{"start", "", "done"}},
	{"bar.warp.sync 0xffffffff", "nanosleep.u32 1", []string{"after start", "", "after event", "", "after the entries", "after CQ's tail", "", ""}},
}

// TestPTXMutants: each access of the kernel that lost its order is noticed.
func TestPTXMutants(t *testing.T) {
	if race.On {
		t.Skip("the interpreter is of one goroutine, and the same without the race detector")
	}
	for _, o := range ptxOrders {
		parts := strings.Split(kernelPTX, o.from)
		if len(parts)-1 != len(o.seen) {
			t.Errorf("%d of %s, want %d: say of each what it orders", len(parts)-1, o.from, len(o.seen))
			continue
		}
		for i, name := range o.seen {
			if name == "" {
				continue
			}
			mutant := strings.Join(parts[:i+1], o.from) + o.to + strings.Join(parts[i+1:], o.from)
			caught := func() error {
				for seed := range uint64(30) {
					r, end := runPTX(t, mutant, EngineUser, true, seed, 300*time.Millisecond)
					err := r.drive(8, true)
					end()
					if errors.Is(err, ErrTimeout) && r.err == nil {
						continue // it may be the machine that is slow
					}
					if err = errors.Join(err, r.err); err != nil {
						return fmt.Errorf("seed %d: %w", seed, err)
					}
				}
				return nil
			}()
			if caught == nil {
				t.Errorf("%s of %s: nobody notices", o.to, name)
			}
			t.Logf("%s of %s: %v", o.to, name, caught)
		}
	}
}

// TestPTXUnknown: what the interpreter does not know it does not run.
func TestPTXUnknown(t *testing.T) {
	for _, s := range []string{"atom.global.add.u32 %r1, [%rd1], 1", "ld.acquire.cta.u32 %r1, [%rd1]", "add.f32 %f1, %f2, %f3", "bar.sync 0", "bar.warp.sync 1",
		"ld.global.v4.u32 {%r1, %r2}, [%rd1]", "mov.u32 %r1, %clock", "bra $L__BB9_9", "fma.rn.f64 %fd1, %fd2, %fd3, %fd4", "setp.lo.u32 %p1, %r1, %r2"} {
		if _, err := parsePTX(strings.Replace(kernelPTX, "\tret;", "\t"+s+";\n\tret;", 1)); !errors.Is(err, errPTX) {
			t.Errorf("%s: %v", s, err)
		}
	}
}
