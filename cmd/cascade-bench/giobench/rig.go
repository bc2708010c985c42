package giobench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/gio"
)

// patience bounds the waits for what always ends soon.
const patience = time.Minute

// rig is a file that is served, and the device that starts I/Os on it. It is used
// by one goroutine.
type rig struct {
	file   *os.File
	server *gio.Server
	queue  *gio.Queue
	device *device
	data   []byte
	num    int    // IOCTXs of an IOCB, at most
	raised uint32 // value of the event's word
}

// openRig opens the file past the page cache, serves it with depth IOCBs of num IOCTXs, and starts
// the device.
func openRig(o Options, name string, flags, depth, num int) (_ *rig, err error) {
	r := &rig{num: num}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.file, err = os.OpenFile(name, flags|unix.O_DIRECT, 0); err != nil {
		return nil, fmt.Errorf("bench: a file past the page cache: %w", err)
	}
	// An SM of this device is one IOCB's part of the depth.
	facts := gio.Facts{UnitSMs: 1, WarpsPerSM: o.Depth / iocbs, ThreadsPerWarp: 2}
	r.server, err = gio.Serve(gio.Options{Depth: depth, NumIOCTX: num, Device: facts, Files: []*os.File{r.file}, DataBytes: o.Bytes, Engine: o.Engine, Workers: o.Depth})
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	r.data = r.server.Data()
	clear(r.data) // it has its pages, for all sides
	r.queue = r.server.Queue()
	r.device, err = startDevice(r.server, o)
	return r, err
}

func (r *rig) close() error {
	var all []error
	if r.device != nil {
		all = append(all, r.device.stop(r.queue))
	}
	if r.queue != nil {
		all = append(all, r.queue.Close())
	}
	if r.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		all = append(all, r.server.Close(ctx))
	}
	if r.file != nil {
		all = append(all, r.file.Close())
	}
	return errors.Join(all...)
}

// part is what one IOCB does: n I/Os, which at makes.
type part struct {
	op gio.Op
	n  int
	at func(i int) gio.IOCTX
}

// transfer is the I/O between place slot of the data memory and a block of the
// file, both counted in blocks of that size.
func transfer(slot int, block, size int64) gio.IOCTX {
	return gio.IOCTX{Address: uint64(slot) * uint64(size), Length: uint32(size), Offset: uint64(block * size), Bytes: uint32(size)}
}

// start has the device start parts at once, each with at most half of the depth under way,
// and returns their IOCBs and when that was.
func (r *rig) start(parts ...part) (ids []uint32, began time.Time, err error) {
	r.raised++
	all, err := r.queue.GetIOCB(len(parts), &gio.Event{Word: 1, Value: r.raised})
	if err != nil {
		return nil, began, fmt.Errorf("bench: %w", err)
	}
	for k, c := range all {
		for i := range parts[k].n {
			c.Ctx[i] = parts[k].at(i)
		}
		c.Set(parts[k].op, parts[k].n)
		ids = append(ids, c.ID)
	}
	if err := r.queue.IssueIO(ids, 1); err != nil {
		return nil, began, fmt.Errorf("bench: %w", err)
	}
	time.Sleep(5 * time.Millisecond) // the doorman wakes the kernel's thread
	began = time.Now()
	r.queue.Word(1).Store(r.raised)
	return ids, began, nil
}

// wait waits for IOCBs, and returns how many of their I/Os failed. Several goroutines
// may wait for one each.
func (r *rig) wait(ctx context.Context, ids ...uint32) (failed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, id := range ids {
		var io *gio.IOError
		if err := r.queue.WaitCQE(ctx, id); errors.As(err, &io) {
			failed += io.Failed
		} else if err != nil {
			return failed, fmt.Errorf("bench: %w", err)
		}
	}
	return failed, nil
}
