//go:build mpi

package mpi_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	fabricmpi "cascadekv/dht/fabric/mpi"
	"cascadekv/dht/mpi"
	"cascadekv/internal/arena"
	"cascadekv/internal/testing/fabrictest"
)

// launched says that a launcher of run_test.go started this process as one rank
// of several.
const launched = "CASCADE_TEST_MPI"

var world *mpi.World

func TestMain(m *testing.M) {
	if os.Getenv(launched) == "" {
		os.Exit(m.Run())
	}
	var err error
	if world, err = mpi.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := world.Stop(5 * time.Second); err != nil {
		fmt.Fprintf(os.Stderr, "rank %d: %v\n", world.Rank(), err) // a known fault of MPICH's, and no failure of ours
	}
	os.Exit(code)
}

// rank returns this rank's fabric, or skips where there is no world.
func rank(t *testing.T) *fabricmpi.Fabric {
	t.Helper()
	if world == nil {
		t.Skip("not started by a launcher: see run_test.go")
	}
	f, err := fabricmpi.New(world, fabricmpi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestRanksConform is the conformance suite on rank 0, and its peers on the
// others.
func TestRanksConform(t *testing.T) {
	conform(t, rank(t), nil)
}

// conform runs the suite on rank 0. p is what f exposes of the other ranks.
func conform(t *testing.T, f *fabricmpi.Fabric, p *fabrictest.Peer) {
	if f.Self() != 0 {
		serve(t, f, p)
		return
	}
	c := fabrictest.Config{Fabric: f, Restart: func(old fabric.Peer) fabric.Peer {
		old.Incarnation++ // MPI has no new processes: the old one is said to be one
		return old
	}}
	for r := 1; r < world.Size(); r++ {
		c.Peers = append(c.Peers, fabric.Peer{Rank: fabric.Rank(r), Incarnation: 1})
	}
	fabrictest.Run(t, c)
}

// serve answers the suite until it is over.
func serve(t *testing.T, f *fabricmpi.Fabric, p *fabrictest.Peer) {
	if p == nil {
		var err error
		if p, err = fabrictest.NewPeer(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	wait(t, p.Quit(), f.Self())
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// slowHold is a handler whose holds of generation 0 take until it is told.
type slowHold struct {
	*fabrictest.Peer
	slow chan struct{}
}

// Hold waits on request, which a handler should not do and a fabric survives.
func (s slowHold) Hold(src fabric.Source) (fabric.Hold, error) {
	if src.Generation == 0 {
		<-s.slow
	}
	return s.Peer.Hold(src)
}

// Answer ends the waiting when the request is "go on".
func (s slowHold) Answer(ctx context.Context, from fabric.Rank, req []byte) ([]byte, error) {
	if string(req) == "go on" {
		close(s.slow)
		return nil, nil
	}
	return s.Peer.Answer(ctx, from, req)
}

// TestSlowHold has several holds that do not return, behind which everything
// else must go on, and which are all answered when they do.
func TestSlowHold(t *testing.T) {
	f := rank(t)
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	s := slowHold{p, make(chan struct{})}
	if err := f.Serve(s); err != nil {
		t.Fatal(err)
	}
	if f.Self() != 0 {
		wait(t, p.Quit(), f.Self())
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	r := fabrictest.Remote{Fabric: f, Rank: 1}
	var src fabric.Source
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it may not serve yet
		if src, err = r.Put(within(t, time.Minute), 1<<20, 5); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	dst, err := arena.MapAnonymous(32 * src.Length)
	if err != nil {
		t.Fatal(err)
	}
	var reads, slow sync.WaitGroup
	for i := range int64(16) {
		wrong, bad := src, dst.Bytes()[i*src.Length:][:src.Length]
		wrong.Generation = 0
		slow.Go(func() {
			if err := f.Read(within(t, time.Minute), 1, wrong, bad); !errors.Is(err, fabric.ErrStale) {
				t.Errorf("a read whose hold took long: %v", err)
			}
		})
		at := dst.Bytes()[(16+i)*src.Length:][:src.Length]
		reads.Go(func() {
			if err := f.Read(within(t, time.Minute), 1, src, at); err != nil {
				t.Errorf("a read behind a slow hold: %v", err)
			} else if err := fabrictest.Check(at, 5, 0); err != nil {
				t.Error(err)
			}
		})
	}
	reads.Wait()
	if _, err := f.Call(within(t, time.Minute), 1, []byte("go on")); err != nil {
		t.Fatal(err)
	}
	slow.Wait()
	if err := errors.Join(r.Evict(within(t, time.Minute), src), r.Quit(within(t, time.Minute)), f.Close()); err != nil {
		t.Error(err)
	}
}

// TestRankDies kills the last of three ranks while it is called and read from.
// The others must end every operation by its deadline, and go on.
func TestRankDies(t *testing.T) {
	f := rank(t)
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	lose(t, f, p)
}

// TestSendsToDead sends to a rank that died with a message unread in its socket,
// several times before MPI can see that. MPI must go on between the others.
func TestSendsToDead(t *testing.T) {
	if world == nil {
		t.Skip("not started by a launcher: see run_test.go")
	}
	pids, err := world.Gather([]int64{int64(os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	m := messages{t, world.NewSet(), make(map[int]bool)}
	switch world.Rank() {
	case 2:
		m.wait(m.receive(0))
		m.wait(m.send(0))
		select {} // without MPI, until it is killed
	case 1:
		for range 10 {
			m.wait(m.receive(0))
			m.wait(m.send(0))
		}
	case 0:
		m.wait(m.send(2)) // they are connected
		m.wait(m.receive(2))
		m.send(2)
		time.Sleep(100 * time.Millisecond) // until it lies there
		if err := syscall.Kill(int(pids[2][0]), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for !ended(pids[2][0]) { // and its sockets are closed
			time.Sleep(time.Millisecond)
		}
		for range 3 {
			m.send(2)
		}
		began := time.Now()
		for range 10 {
			m.wait(m.send(1))
			m.wait(m.receive(1))
		}
		t.Logf("ten messages to a survivor and back took %v", time.Since(began))
	}
	fmt.Printf("rank %d survived\n", world.Rank())
}

// messages are those of one rank, without a fabric.
type messages struct {
	t    *testing.T
	set  *mpi.Set
	done map[int]bool // slots
}

func (m messages) send(to int) int {
	slot, err := m.set.Isend(m.bytes(), to, 1)
	if err != nil {
		m.t.Fatal(err)
	}
	delete(m.done, slot) // an earlier message's, for which nobody waited
	return slot
}

func (m messages) receive(from int) int {
	slot, err := m.set.Irecv(m.bytes(), from, 1)
	if err != nil {
		m.t.Fatal(err)
	}
	delete(m.done, slot)
	return slot
}

// bytes are some that MPI may have.
func (m messages) bytes() []byte {
	b, err := arena.MapAnonymous(64)
	if err != nil {
		m.t.Fatal(err)
	}
	return b.Bytes()
}

// wait lets MPI work until a message is sent, or here. Others may fail meanwhile.
func (m messages) wait(slot int) {
	for end := time.Now().Add(time.Minute); !m.done[slot]; {
		done, err := m.set.Test(1, true)
		if err == nil && time.Now().After(end) {
			err = errors.New("not within a minute")
		}
		for _, d := range done {
			m.done[d.Slot] = true
			if d.Slot == slot {
				err = cmp.Or(err, d.Err)
			}
		}
		if err != nil {
			m.t.Fatalf("a message of rank %d: %v", world.Rank(), err)
		}
	}
}

// ended reports whether a process is no more, or waits for its parent only.
func ended(pid int64) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// lose has the last rank die.
func lose(t *testing.T, f *fabricmpi.Fabric, p *fabrictest.Peer) {
	last := fabric.Rank(world.Size() - 1)
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	if f.Self() != 0 {
		if f.Self() == last {
			wait(t, p.Quit(), last)
			die()
		}
		wait(t, p.Quit(), f.Self())
		leave(t, f)
		return
	}
	survive(t, f, last)
	if err := (fabrictest.Remote{Fabric: f, Rank: 1}).Quit(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	time.Sleep(50 * time.Millisecond)
	leave(t, f)
}

// survive is rank 0's part of TestRankDies.
func survive(t *testing.T, f *fabricmpi.Fabric, last fabric.Rank) {
	r := fabrictest.Remote{Fabric: f, Rank: last}
	var src fabric.Source
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it may not serve yet
		var err error
		if src, err = r.Put(within(t, time.Minute), 8<<20, 5); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	var users sync.WaitGroup
	for i := range 8 {
		dst, err := arena.MapAnonymous(src.Length)
		if err != nil {
			t.Fatal(err)
		}
		users.Go(func() { useUntilDead(t, f, last, src, dst.Bytes(), i%2 == 0) })
	}
	time.Sleep(100 * time.Millisecond)
	if err := r.Quit(within(t, time.Second)); err != nil {
		t.Log("the victim was gone before it answered:", err)
	}
	users.Wait()
	other := fabrictest.Remote{Fabric: f, Rank: 1}
	block, err := other.Put(within(t, time.Minute), 1<<20, 6)
	if err != nil {
		t.Fatalf("a survivor after the death: %v", err)
	}
	dst, err := arena.MapAnonymous(block.Length)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Read(within(t, time.Minute), 1, block, dst.Bytes()); err != nil {
		t.Errorf("a read from a survivor after the death: %v", err)
	} else if err := fabrictest.Check(dst.Bytes(), 6, 0); err != nil {
		t.Error(err)
	}
	f.SetPeer(fabric.Peer{Rank: last, Incarnation: 1, State: fabric.Gone})
	if err := f.Read(within(t, time.Minute), last, src, dst.Bytes()[:0]); err == nil {
		t.Error("a read from the dead succeeded")
	}
	if err := (fabrictest.Remote{Fabric: f, Rank: 1}).Evict(within(t, time.Minute), block); err != nil {
		t.Error(err)
	}
}

// useUntilDead reads or calls until that fails, which takes no longer than its
// deadline and a while.
func useUntilDead(t *testing.T, f *fabricmpi.Fabric, r fabric.Rank, src fabric.Source, dst []byte, read bool) {
	const limit, slack = time.Second, 3 * time.Second
	for {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		start := time.Now()
		var err error
		if read {
			err = f.Read(ctx, r, src, dst)
		} else {
			_, err = f.Call(ctx, r, nil)
		}
		took := time.Since(start)
		cancel()
		if took > limit+slack {
			t.Errorf("an operation with a deadline of %v took %v", limit, took)
		}
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fabric.ErrUnreachable) {
				t.Errorf("an operation on the dead ended with %v", err)
			}
			return
		}
	}
}

// die ends this process as a crash does.
func die() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// leave closes a survivor's fabric. What MPI still wants of the dead is no
// reason to wait long.
func leave(t *testing.T, f *fabricmpi.Fabric) {
	start := time.Now()
	if err := f.Close(); err != nil {
		t.Log(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("Close after a death took %v", took)
	}
	fmt.Printf("rank %d survived\n", f.Self())
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func wait(t *testing.T, quit <-chan struct{}, r fabric.Rank) {
	select {
	case <-quit:
	case <-time.After(2 * time.Minute):
		t.Errorf("%v was not told to quit", r)
	}
}
