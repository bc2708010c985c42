package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/cuda"
	"cascadekv/gpu/gio"
)

// The ring on which the kernel is tried.
const (
	kernelDepth  = 2
	kernelReads  = 8
	kernelBytes  = 4096 // of a read
	kernelGlance = 20 * time.Millisecond
)

// deviceFacts are what the ring of a GPU follows from. A driver without green contexts does not say what
// it can set apart; that is taken to be as on an H100 then.
func deviceFacts(dev cuda.Device) (gio.Facts, error) {
	perWarp, err1 := dev.Attribute(cuda.ThreadsPerWarp)
	perSM, err2 := dev.Attribute(cuda.ThreadsPerSM)
	if err := errors.Join(err1, err2); err != nil {
		return gio.Facts{}, err
	}
	f := gio.Facts{UnitSMs: gio.H100.UnitSMs, WarpsPerSM: perSM / max(perWarp, 1), ThreadsPerWarp: perWarp}
	if all, err := dev.SMs(); err == nil {
		if part, err := all.Split(1); err == nil {
			f.UnitSMs = part.Count()
		}
	}
	if f.NumIOCTX() == 0 {
		return f, fmt.Errorf("the driver says that an SM of GPU %d has %d threads, %d in a warp: report this", dev.Number(), perSM, perWarp)
	}
	return f, nil
}

// cleanup undoes what was done, the last first.
type cleanup []func() error

func (c cleanup) run() (err error) {
	for i := len(c) - 1; i >= 0; i-- {
		err = errors.Join(err, c[i]())
	}
	return err
}

// tryKernel has the kernel of gpu/gio start reads on a small ring in pinned memory, and compares what it read. It
// sets the engine of r.
// After errSlow nothing is given back: the kernel may still use it.
func (p prober) tryKernel(c *cuda.Context, r *ring) (err error) {
	if err := oneConnection(); err != nil {
		return err
	}
	var undo cleanup
	defer func() {
		if errors.Is(err, errSlow) {
			return
		}
		if failed := undo.run(); !cuda.Lost(err) { // all of these fail alike then
			err = errors.Join(err, failed)
		}
	}()
	file, want, err := pattern()
	if err != nil {
		return err
	}
	undo = append(undo, file.Close)
	s, err := gio.Serve(gio.Options{Depth: kernelDepth, NumIOCTX: min(kernelReads, r.NumIOCTX), Device: r.facts(), Files: []*os.File{file}, DataBytes: kernelReads * kernelBytes})
	if err != nil {
		return err
	}
	r.Engine = s.Engine()
	undo = append(undo, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), p.patience)
		defer cancel()
		return s.Close(ctx)
	})
	q := s.Queue()
	undo = append(undo, q.Close)
	stream, more, err := p.launch(c, s.Ring())
	undo = append(undo, more...)
	if err != nil {
		return err
	}
	err = p.readBy(q, stream)
	q.StopDevice()
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	if ended := stream.Await(ctx); errors.Is(ended, context.DeadlineExceeded) {
		return fmt.Errorf("%w: the kernel goes on %v after it was stopped", errSlow, p.patience)
	} else if ended != nil {
		return ended
	}
	if err == nil && !bytes.Equal(q.Data()[:len(want)], want) {
		err = errors.New("the kernel's reads brought other bytes than the file has")
	}
	return err
}

// launch starts the kernel over a ring, and returns its stream and what undoes it once that is done.
func (p prober) launch(c *cuda.Context, ring []byte) (stream *cuda.Stream, undo cleanup, err error) {
	if err = c.Register(ring, cuda.Portable|cuda.DeviceMap); err != nil {
		return nil, undo, err
	}
	undo = append(undo, func() error { return c.Unregister(ring) })
	at, err := c.Mapped(ring)
	if err != nil {
		return nil, undo, err
	}
	zeros := make([]byte, gio.KernelStateBytes(kernelDepth))
	state, err := c.Alloc(int64(len(zeros)))
	if err != nil {
		return nil, undo, err
	}
	undo = append(undo, func() error { return c.Free(state) })
	m, err := c.LoadModule(gio.KernelPTX())
	if err != nil {
		return nil, undo, err
	}
	undo = append(undo, m.Unload)
	f, err := m.Function(gio.KernelName)
	if err != nil {
		return nil, undo, err
	}
	if stream, err = c.NewStream(0); err != nil {
		return nil, undo, err
	}
	undo = append(undo, stream.Destroy)
	if err = stream.CopyToDevice(state, zeros); err != nil {
		return nil, undo, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	if err = stream.Await(ctx); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: a copy, waited %v", errSlow, p.patience)
		}
		return nil, undo, err
	}
	runtime.KeepAlive(zeros)
	return stream, undo, stream.Launch(f, 1, 32*(kernelDepth+1), uint64(at), uint64(state), uint64(p.patience))
}

// readBy issues reads of the whole file to a kernel that runs on a stream, and waits for them, or for its end.
func (p prober) readBy(q *gio.Queue, stream *cuda.Stream) error {
	all, err := q.GetIOCB(1, nil)
	if err != nil {
		return err
	}
	b := all[0]
	n := len(b.Ctx)
	size := uint64(kernelReads * kernelBytes / n)
	for i := range b.Ctx {
		b.Ctx[i] = gio.IOCTX{Address: uint64(i) * size, Length: uint32(size), Offset: uint64(i) * size, Bytes: uint32(size)}
	}
	b.Set(gio.Read, n)
	if err := q.IssueIO([]uint32{b.ID}, 0); err != nil {
		return err
	}
	for until := time.Now().Add(p.patience); ; {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(min(kernelGlance, max(time.Until(until), 0))))
		err := q.WaitCQE(ctx, b.ID)
		cancel()
		if err == nil || !errors.Is(err, gio.ErrTimeout) {
			return err
		}
		if ended, failed := stream.Done(); ended || failed != nil {
			return errors.Join(errors.New("the kernel ended before its reads"), failed)
		}
		if time.Now().After(until) {
			return fmt.Errorf("the kernel's reads did not end in time: waited %v", p.patience)
		}
	}
}

// pattern returns a file in memory, and what is in it.
func pattern() (*os.File, []byte, error) {
	fd, err := unix.MemfdCreate("cascade-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("a file in memory: %w", os.NewSyscallError("memfd_create", err))
	}
	f, want := os.NewFile(uintptr(fd), "cascade-probe"), make([]byte, kernelReads*kernelBytes)
	for i := 0; i < len(want); i += 8 {
		binary.LittleEndian.PutUint64(want[i:], uint64(i+1)*0x9e3779b97f4a7c15)
	}
	if _, err = f.WriteAt(want, 0); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("a file in memory: %w", err), f.Close())
	}
	return f, want, nil
}
