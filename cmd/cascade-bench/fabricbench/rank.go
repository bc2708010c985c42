package fabricbench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cmd/cascade-bench/kit"
	"cascadekv/dht/fabric"
)

// rank is one of the two ranks of a world. Rank 0 reads from rank 1 as the lines
// on its standard input direct; bench/c/fabric.c takes the same lines.
type rank struct {
	f      fabric.Fabric
	memory []byte
	quit   chan struct{}
	once   sync.Once
}

// RankOptions configure one rank of the benchmark.
type RankOptions struct {
	Folder string // where the memory of both ranks lies, as files
	Bytes  int64  // of each rank's memory
	In     io.Reader
	Out    io.Writer

	// Over TCP: the addresses of this rank and of the one that it starts, and that
	// one's network namespace; "" for loopback and this one.
	Listen, OtherListen, OtherNetns string

	oneSided bool // reads from a rank that is not suspect are one-sided
}

// open maps this rank's memory: a file that the C program maps too, because
// where the pages lie decides how fast they are.
func (o RankOptions) open(self fabric.Rank) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(o.Folder, fmt.Sprintf("rank%d", self)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(o.Bytes); err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(o.Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("bench: map %d bytes: %w", o.Bytes, err)
	}
	return m, nil
}

// Bytes of rank 0's calls to rank 1.
const (
	askCPU  = 'c' // answer the CPU time used so far, in nanoseconds
	askQuit = 'q'
)

const patience = 30 * time.Second

// runRank serves and, on rank 0, carries out lines until "quit". The caller closes f.
func runRank(ctx context.Context, f fabric.Fabric, o RankOptions) error {
	m, err := o.open(f.Self())
	if err != nil {
		return err
	}
	r := &rank{f: f, memory: m, quit: make(chan struct{})}
	m[0] = byte(f.Self()) + 1
	for n := 1; n < len(m); n *= 2 {
		copy(m[n:], m[:n])
	}
	if err := f.Serve(r); err != nil {
		return err
	}
	if f.Self() != 0 {
		select {
		case <-r.quit:
		case <-ctx.Done():
		}
		time.Sleep(10 * time.Millisecond) // the answer to askQuit is on its way
		return ctx.Err()
	}
	return r.commands(ctx, o.In, o.Out, o.oneSided)
}

// commands carries out the lines of in.
func (r *rank) commands(ctx context.Context, in io.Reader, out io.Writer, oneSided bool) error {
	if err := kit.Until(ctx, time.Millisecond, patience, func() (bool, error) {
		_, err := r.ask(ctx, askCPU)
		if errors.Is(err, fabric.ErrUnreachable) { // it may not serve yet
			return false, nil
		}
		return true, err
	}); err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var mode string
		var size, times, slots, callers int
		var pause time.Duration
		line := lines.Text()
		switch {
		case line == "quit":
			_, err := r.ask(ctx, askQuit)
			return err
		case strings.HasPrefix(line, "read rget ") && !oneSided:
			fmt.Fprintln(out, "none")
		case scan(line, "read %s %d %d %d %d", &mode, &size, &times, &slots, &callers) == nil:
			peer := fabric.Peer{Rank: 1, Incarnation: 1}
			if oneSided && mode == "two" {
				peer.State = fabric.Suspect // from which nothing is read one-sided
			}
			if oneSided {
				r.f.SetPeer(peer)
			}
			took, sum, err := r.reads(ctx, size, times, slots, callers)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, took[len(took)/2].Nanoseconds(), took[0].Nanoseconds(), sum.Nanoseconds())
		case scan(line, "move %d %d %d %d", &size, &times, &slots, &callers) == nil:
			took, used, err := r.move(ctx, size, times, slots, callers)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, took.Nanoseconds(), used.Nanoseconds())
		case scan(line, "idle %d", &pause) == nil:
			cores, err := r.idle(ctx, pause)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%d\n", int64(cores*1e6))
		default:
			return fmt.Errorf("%w: line %q", kit.ErrBadOption, line)
		}
	}
	return errors.New("bench: the input ended without quit")
}

func scan(line, format string, to ...any) error {
	_, err := fmt.Sscanf(line, format, to...)
	return err
}

// reads has callers read size bytes times times in all, and returns how long
// each took, sorted, and how long all took together.
func (r *rank) reads(ctx context.Context, size, times, slots, callers int) ([]time.Duration, time.Duration, error) {
	if size < 1 || times < 1 || slots < callers || callers < 1 || size*slots > len(r.memory) {
		return nil, 0, fmt.Errorf("%w: %d reads of %d bytes in %d places by %d callers", kit.ErrBadOption, times, size, slots, callers)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	took := make([]time.Duration, times)
	all, err := kit.Parallel(callers, times, func(c, i int) error {
		slot := i % slots
		if callers > 1 {
			slot = c + callers*(i%(slots/callers)) // slots of its own
		}
		defer func(begin time.Time) { took[i] = time.Since(begin) }(time.Now())
		return r.read(ctx, slot*size, size)
	})
	slices.Sort(took)
	return took, all, err
}

// move is reads, and returns how long all took and the processor time of both ranks.
func (r *rank) move(ctx context.Context, size, times, slots, callers int) (took, used time.Duration, err error) {
	own := kit.CPUTime()
	other, err := r.ask(ctx, askCPU)
	if err != nil {
		return 0, 0, err
	}
	if _, took, err = r.reads(ctx, size, times, slots, callers); err != nil {
		return 0, 0, err
	}
	otherNow, err := r.ask(ctx, askCPU)
	return took, kit.CPUTime() - own + otherNow - other, err
}

// read reads once and looks at both ends of what came.
func (r *rank) read(ctx context.Context, at, size int) error {
	dst := r.memory[at : at+size : at+size]
	if err := r.f.Read(ctx, 1, fabric.Source{Offset: int64(at), Length: int64(size), Generation: 1}, dst); err != nil {
		return err
	}
	if dst[0] != 2 || dst[size-1] != 2 {
		return kit.ErrWrong
	}
	dst[0], dst[size-1] = 0, 0
	return nil
}

// idle returns how many cores the busier of both ranks uses when nothing is
// asked of them for a while.
func (r *rank) idle(ctx context.Context, pause time.Duration) (float64, error) {
	time.Sleep(pause / 4) // what was asked just now has been forgotten
	own, start := kit.CPUTime(), time.Now()
	other, err := r.ask(ctx, askCPU)
	if err != nil {
		return 0, err
	}
	time.Sleep(pause)
	used := kit.CPUTime() - own
	otherNow, err := r.ask(ctx, askCPU)
	return max(used, otherNow-other).Seconds() / time.Since(start).Seconds(), err
}

// ask calls rank 1.
func (r *rank) ask(ctx context.Context, word byte) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := r.f.Call(ctx, 1, []byte{word})
	if err != nil {
		return 0, err
	}
	return time.Duration(binary.LittleEndian.Uint64(b)), nil
}

// Answer implements fabric.Handler.
func (r *rank) Answer(_ context.Context, _ fabric.Rank, req []byte) ([]byte, error) {
	if len(req) == 1 && req[0] == askQuit {
		r.once.Do(func() { close(r.quit) })
	}
	return binary.LittleEndian.AppendUint64(nil, uint64(kit.CPUTime())), nil
}

// Hold implements fabric.Handler.
func (r *rank) Hold(src fabric.Source) (fabric.Hold, error) {
	if src.Generation != 1 || src.Offset < 0 || src.Length > int64(len(r.memory))-src.Offset {
		return nil, fabric.ErrStale
	}
	return hold(r.memory[src.Offset:][:src.Length]), nil
}

type hold []byte

// Bytes implements fabric.Hold.
func (h hold) Bytes() []byte { return h }

// Release implements fabric.Hold: the memory stays.
func (hold) Release() {}
