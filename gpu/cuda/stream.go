package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// Stream is a queue of operations on a device, done one after another.
type Stream struct {
	context *Context
	handle  uintptr
}

// nonBlocking streams take no part in the order of the default stream.
const nonBlocking = 1

// NewStream returns a stream. priority is lower for what goes first; 0 is the
// least that a device has.
func (c *Context) NewStream(priority int) (*Stream, error) {
	s := &Stream{context: c}
	if err := c.in(cuStreamCreate, c.device.about(), uintptr(unsafe.Pointer(&s.handle)), nonBlocking, uintptr(uint32(int32(priority)))); err != nil {
		return nil, err
	}
	return s, nil
}

// Destroy ends the stream, whose operations are still done.
func (s *Stream) Destroy() error { return s.context.in(cuStreamDestroy, "a stream", s.handle) }

// CopyToDevice queues a copy of host memory.
func (s *Stream) CopyToDevice(to DevicePtr, from []byte) error {
	return s.context.in(cuMemcpyHtoDAsync, fmt.Sprintf("%d bytes", len(from)), uintptr(to), hostAddress(from), uintptr(len(from)), s.handle)
}

// CopyToHost queues a copy of device memory.
func (s *Stream) CopyToHost(to []byte, from DevicePtr) error {
	return s.context.in(cuMemcpyDtoHAsync, fmt.Sprintf("%d bytes", len(to)), hostAddress(to), uintptr(from), uintptr(len(to)), s.handle)
}

// Copy is one copy of a batch between a device and the host.
type Copy struct {
	Device DevicePtr
	Host   []byte
	ToHost bool
}

// copyAttributes is CUmemcpyAttributes: in the order of the stream, beside the
// computation of others.
type copyAttributes struct {
	order int32
	hints [4]int32
	flags uint32
}

// CopyBatch queues many copies, by one call where the driver has one (CUDA 12.8),
// otherwise by a call each. The copies of a batch have no order among themselves. The slice is
// the caller's again when it returns. After an error some may have been queued.
func (s *Stream) CopyBatch(copies []Copy) error {
	f := cuMemcpyBatchAsync
	if s.context.driver.at[f] == 0 {
		f = cuMemcpyBatchAsync12
	}
	if s.context.driver.at[f] == 0 || len(copies) == 1 {
		return s.copyEach(copies)
	}
	if len(copies) == 0 {
		return nil
	}
	to, from, sizes := make([]uintptr, len(copies)), make([]uintptr, len(copies)), make([]uintptr, len(copies))
	for i, c := range copies {
		to[i], from[i], sizes[i] = uintptr(c.Device), hostAddress(c.Host), uintptr(len(c.Host))
		if c.ToHost {
			to[i], from[i] = from[i], to[i]
		}
	}
	how, first, failed := copyAttributes{order: 1, flags: 1}, uintptr(0), uintptr(0)
	about := fmt.Sprintf("%d copies", len(copies))
	if f == cuMemcpyBatchAsync12 {
		return s.context.in(f, about, uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(unsafe.Pointer(unsafe.SliceData(sizes))), uintptr(len(copies)),
			uintptr(unsafe.Pointer(&how)), uintptr(unsafe.Pointer(&first)), 1, uintptr(unsafe.Pointer(&failed)), s.handle)
	}
	return s.context.in(f, about, uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(unsafe.Pointer(unsafe.SliceData(sizes))), uintptr(len(copies)),
		uintptr(unsafe.Pointer(&how)), uintptr(unsafe.Pointer(&first)), 1, s.handle)
}

func (s *Stream) copyEach(copies []Copy) error {
	for _, c := range copies {
		var err error
		if c.ToHost {
			err = s.CopyToHost(c.Host, c.Device)
		} else {
			err = s.CopyToDevice(c.Device, c.Host)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteValue queues a store of a word, which becomes visible after all operations
// before it. at is aligned to 4, on the device or in Mapped memory.
func (s *Stream) WriteValue(at DevicePtr, value uint32) error {
	return s.context.in(cuStreamWriteValue32, fmt.Sprintf("the word at %#x", uint64(at)), s.handle, uintptr(at), uintptr(value), 0)
}

// WaitValue has the stream wait until the word has reached value, counting round:
// int32(word-value) >= 0. While it waits, see the package's comment.
func (s *Stream) WaitValue(at DevicePtr, value uint32) error {
	return s.context.in(cuStreamWaitValue32, fmt.Sprintf("the word at %#x", uint64(at)), s.handle, uintptr(at), uintptr(value), 0)
}

// Synchronize waits until all that was queued is done. The thread sleeps or spins,
// as the driver likes.
func (s *Stream) Synchronize() error { return s.context.in(cuStreamSynchronize, "a stream", s.handle) }

// Done reports whether all that was queued is done.
func (s *Stream) Done() (bool, error) {
	return ready(s.context.in(cuStreamQuery, "a stream", s.handle))
}

// How a stream is awaited: most copies take less than a thread takes to fall asleep
// and be woken.
const (
	spin = 100 * time.Microsecond
	nap  = 50 * time.Microsecond
)

// Await waits until all that was queued is done, or ctx ends: then the error wraps
// that of ctx, and the stream goes on.
func (s *Stream) Await(ctx context.Context) error {
	began := time.Now()
	for {
		switch done, err := s.Done(); {
		case done || err != nil:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("a stream was not waited for: %w", ctx.Err())
		}
		if time.Since(began) < spin {
			runtime.Gosched()
		} else {
			time.Sleep(nap)
		}
	}
}

func ready(err error) (bool, error) {
	if errors.Is(err, NotReady) {
		return false, nil
	}
	return err == nil, err
}

// Event is a mark in a stream.
type Event struct {
	context *Context
	handle  uintptr
}

// Flags of an event: a thread that waits for it sleeps, and it takes no time.
const blockingSync, disableTiming = 1, 2

// NewEvent returns an event that is at no mark: it counts as reached.
func (c *Context) NewEvent() (*Event, error) {
	e := &Event{context: c}
	if err := c.in(cuEventCreate, c.device.about(), uintptr(unsafe.Pointer(&e.handle)), blockingSync|disableTiming); err != nil {
		return nil, err
	}
	return e, nil
}

// Record puts the event's mark behind all that the stream has.
func (e *Event) Record(s *Stream) error {
	return e.context.in(cuEventRecord, "an event", e.handle, s.handle)
}

// Wait has the stream wait until the mark, as it is now, is reached.
func (s *Stream) Wait(e *Event) error {
	return s.context.in(cuStreamWaitEvent, "an event", s.handle, e.handle, 0)
}

// Synchronize waits until the mark is reached. The thread sleeps.
func (e *Event) Synchronize() error { return e.context.in(cuEventSynchronize, "an event", e.handle) }

// Done reports whether the mark is reached.
func (e *Event) Done() (bool, error) { return ready(e.context.in(cuEventQuery, "an event", e.handle)) }

// Destroy ends the event.
func (e *Event) Destroy() error { return e.context.in(cuEventDestroy, "an event", e.handle) }
