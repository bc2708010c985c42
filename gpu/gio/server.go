package gio

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The engines.
const (
	EngineUring = "io_uring"
	EngineUser  = "user"
)

// Options describe a queue. The zero value of all but Files and DataBytes is
// useful.
type Options struct {
	Depth     int        // IOCBs; default 8
	NumIOCTX  int        // IOCTXs of each, a power of two; default Device.NumIOCTX()
	Device    Facts      // default H100
	Files     []*os.File // what IOCTX.File counts, nil for none: see Server.Replace; how they were opened bounds what can be done to them. Serve duplicates them
	Replaces  bool       // Server.Replace is called
	DataBytes int64      // of data memory, at most 16 GiB; buffer i is its i-th GiB

	Engine  string        // EngineUring, EngineUser; default the first, or the second where ErrUnsupported
	Idle    time.Duration // of the kernel's thread without work before it sleeps; default 50 ms. It takes one core until then
	Workers int           // threads of the user-space engine; default 32

	// Fault makes the user-space engine do something else than it was asked to,
	// for tests: it chooses that engine. Several goroutines call it at once.
	Fault func(IO) Fault

	heap bool // memory of the Go heap, which the race detector sees
}

// IO is an I/O that the user-space engine is about to do.
type IO struct {
	ID    uint32 // of the IOCB
	Index int    // of the IOCTX
	Write bool
}

// Fault is what becomes of an I/O. The zero value is nothing special.
type Fault struct {
	Errno unix.Errno      // it fails
	Short uint32          // it ends so many bytes early
	Until <-chan struct{} // it waits for that first, whatever else happens: a device that stalls
}

func (o Options) withDefaults() (Options, error) {
	o.Depth = cmp.Or(o.Depth, 8)
	o.Device = cmp.Or(o.Device, H100)
	o.NumIOCTX = cmp.Or(o.NumIOCTX, o.Device.NumIOCTX())
	o.Idle = cmp.Or(o.Idle, 50*time.Millisecond)
	o.Workers = cmp.Or(o.Workers, 32)
	if o.Fault != nil || o.heap {
		o.Engine = cmp.Or(o.Engine, EngineUser)
	}
	switch {
	case o.Depth < 0 || o.Depth > MaxDepth:
		return o, fmt.Errorf("%w: a depth of %d, want 1 to %d", ErrOption, o.Depth, MaxDepth)
	case o.NumIOCTX <= 0 || o.NumIOCTX > MaxIOCTX || o.NumIOCTX&(o.NumIOCTX-1) != 0:
		return o, fmt.Errorf("%w: %d IOCTXs per IOCB, want a power of two up to %d", ErrOption, o.NumIOCTX, MaxIOCTX)
	case len(o.Files) == 0 || len(o.Files) > maxFiles:
		return o, fmt.Errorf("%w: %d files, want 1 to %d", ErrOption, len(o.Files), maxFiles)
	case o.DataBytes <= 0 || o.DataBytes > MaxBuffers*BufferBytes || o.DataBytes%pageBytes != 0:
		return o, fmt.Errorf("%w: %d bytes of data memory, want whole pages up to %d", ErrOption, o.DataBytes, MaxBuffers*BufferBytes)
	case o.Workers < 0 || o.Idle < time.Millisecond:
		return o, fmt.Errorf("%w: %d workers, idle for %v; want at least one, and a millisecond", ErrOption, o.Workers, o.Idle)
	case o.Engine != "" && o.Engine != EngineUring && o.Engine != EngineUser, o.Engine == EngineUring && (o.Fault != nil || o.heap):
		return o, fmt.Errorf("%w: engine %q", ErrOption, o.Engine)
	}
	return o, nil
}

// maxFiles bounds the files of a queue, below what the kernel takes.
const maxFiles = 1 << 14

// engine serves the I/Os of a region. It takes nothing that lies in the region
// for granted.
type engine interface {
	// stop has the engine take no further entry.
	stop()
	// done is closed once no I/O is under way, after stop.
	done() <-chan struct{}
	// replace has I/Os that begin from now on use another file as the i-th. It is not called after stop.
	replace(i, fd int) error
}

// memory is a region or data, and how to give it up.
type memory struct {
	fd  int // -1: of the heap
	mem []byte
}

// Server is a region with its engine, data memory and files. It is safe for
// concurrent use.
type Server struct {
	o          Options
	ring, data memory
	r          *region
	engine     engine
	name       string
	fallback   error          // why the engine is not io_uring
	files      []atomic.Int32 // descriptors, -1 for none
	users      sync.WaitGroup // queues of this process
	end        sync.Once
	quiet      chan struct{} // closed when no I/O is under way any more
	released   chan struct{} // closed when everything is given back

	handing   sync.Mutex // while the memfds are duplicated, or given up
	replacing sync.Mutex // while files are replaced, which may wait for a disk, or the engine is stopped
	ended     bool       // no file is replaced any more
}

// Serve makes a region and serves it until Close. Errors: ErrOption,
// ErrUnsupported when Options.Engine asks for io_uring alone, those of the
// kernel.
func Serve(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{o: o, ring: memory{fd: -1}, data: memory{fd: -1}, quiet: make(chan struct{}), released: make(chan struct{})}
	if err := s.open(); err != nil {
		s.release()
		return nil, err
	}
	s.r.h.engine.Store(engineServing)
	go func() {
		<-s.engine.done()
		close(s.quiet)
		s.users.Wait()
		s.release()
		close(s.released)
	}()
	return s, nil
}

func (s *Server) open() (err error) {
	g := newGeometry(s.o.Depth, s.o.NumIOCTX)
	if s.ring, err = newMemory("cascade-gio-ring", g.bytes(), s.o.heap); err != nil {
		return err
	}
	if s.data, err = newMemory("cascade-gio-data", int(s.o.DataBytes), s.o.heap); err != nil {
		return err
	}
	if !s.o.heap {
		_ = unix.Madvise(s.data.mem, unix.MADV_HUGEPAGE) // a hint: larger pieces for the disk
	}
	s.files = make([]atomic.Int32, len(s.o.Files))
	for i := range s.files {
		s.files[i].Store(-1)
	}
	for i, f := range s.o.Files {
		if f == nil {
			continue
		}
		fd, err := duplicateFile(f)
		if err != nil {
			return err
		}
		s.files[i].Store(int32(fd))
	}
	var buffers []buffer
	base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.data.mem))))
	for at := uint64(0); at < uint64(len(s.data.mem)); at += BufferBytes {
		buffers = append(buffers, buffer{base + at, min(BufferBytes, uint64(len(s.data.mem))-at)})
	}
	s.r = newRegion(g, s.ring.mem)
	s.r.describe(buffers, len(s.files))
	if s.o.Engine != EngineUser {
		s.name = EngineUring
		if s.engine, err = openUring(s.r, s.data.mem, buffers, s.files, s.o); err == nil || s.o.Engine == EngineUring || !errors.Is(err, ErrUnsupported) {
			return err
		}
	}
	s.name, s.fallback = EngineUser, err
	s.engine = openUser(s.r, buffers, s.data.mem, s.files, s.o)
	return nil
}

// duplicateFile duplicates a descriptor that a client may name.
func duplicateFile(f *os.File) (fd int, err error) {
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("gio: duplicate %s: %w", f.Name(), err)
	}
	if err := refuseDisk(fd, f.Name()); err != nil {
		_ = unix.Close(fd) // of no use
		return -1, err
	}
	return fd, nil
}

// Replace has I/Os that begin from now on use another file as the i-th, which Serve may have had none for; those under way go on with the
// old one. f is duplicated. After an error some may use it all the same until Done is closed. It may wait for a disk that hangs. Errors: ErrGone, ErrOption,
// those of the kernel.
func (s *Server) Replace(i int, f *os.File) error {
	if i < 0 || i >= len(s.files) || !s.o.Replaces {
		return fmt.Errorf("%w: file %d is not to be replaced", ErrOption, i)
	}
	fd, err := duplicateFile(f)
	if err != nil {
		return err
	}
	s.replacing.Lock()
	defer s.replacing.Unlock()
	if s.ended {
		_ = unix.Close(fd) // of no use
		return ErrGone
	}
	err = s.engine.replace(i, fd)
	old := int(s.files[i].Load())
	if old < 0 {
		s.files[i].Store(int32(fd))
		return err
	}
	if failed := unix.Dup3(fd, old, unix.O_CLOEXEC); failed != nil { // who reads the old file has it still
		err = errors.Join(err, fmt.Errorf("gio: %w", os.NewSyscallError("dup3", failed)))
	}
	_ = unix.Close(fd) // a duplicate
	return err
}

// refuseDisk refuses a block device. The kernel lets an entry that reads or writes
// one with protection information name any memory of this process for that, which
// no restriction forbids.
func refuseDisk(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("gio: %w", os.NewSyscallError("fstat", err))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return fmt.Errorf("%w: %s is a block device, through which a client could reach memory that is not its own: give it files", ErrOption, name)
	}
	return nil
}

// Engine is the engine that serves.
func (s *Server) Engine() string { return s.name }

// Fallback is why the engine is not io_uring, an ErrUnsupported; nil when it is, or
// when the other one was asked for.
func (s *Server) Fallback() error { return s.fallback }

// Data is the data memory. It is valid until Close.
func (s *Server) Data() []byte { return s.data.mem }

// Ring is the ring region, to be registered with a GPU that is the device. It is valid until the server
// and the queues of this process are closed.
func (s *Server) Ring() []byte { return s.ring.mem }

// Send hands the region and the data memory over to a client, which calls Attach
// at the other end. The server must keep the connection open, and Close or the
// end of its process lets the client notice that it is gone. It does not wait for room in the socket.
// Errors: ErrGone, those of the connection.
func (s *Server) Send(c *net.UnixConn) error {
	fds, err := s.duplicate(&s.ring, &s.data)
	if err == nil {
		err = sendNow(c, []byte{version}, unix.UnixRights(fds...))
	}
	for _, fd := range fds {
		_ = unix.Close(fd) // memory, which has nothing to write back
	}
	if err != nil {
		return fmt.Errorf("gio: hand the region to a client: %w", err)
	}
	return nil
}

// sendNow sends without waiting. The other end, or a duplicate of this one, may have made the socket one whose calls
// block, which no deadline ends.
func sendNow(c *net.UnixConn, p, rights []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), p, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	return errors.Join(err, os.NewSyscallError("sendmsg", sent))
}

// File duplicates the region's memfd, for a device in a process of its own. Error:
// ErrGone.
func (s *Server) File() (*os.File, error) { return s.duplicateOf(&s.ring, "gio-region") }

// DataFile duplicates the memfd of the data memory. Error: ErrGone.
func (s *Server) DataFile() (*os.File, error) { return s.duplicateOf(&s.data, "gio-data") }

func (s *Server) duplicateOf(m *memory, name string) (*os.File, error) {
	fds, err := s.duplicate(m)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), name), nil
}

// duplicate duplicates memfds, for their numbers may be those of other files as
// soon as the server has ended. On an error it returns those that it has.
func (s *Server) duplicate(all ...*memory) (fds []int, err error) {
	s.handing.Lock()
	defer s.handing.Unlock()
	for _, m := range all {
		switch {
		case s.o.heap:
			return fds, fmt.Errorf("%w: a region on the heap cannot be handed over", ErrOption)
		case m.fd < 0:
			return fds, ErrGone
		}
		fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fds, fmt.Errorf("gio: %w", os.NewSyscallError("fcntl", err))
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Close takes no further I/O and waits until none is under way, so that nobody
// writes to the data memory any more. ErrBusy when ctx ends before: memory and
// files stay until the last I/O has ended, and are released then.
func (s *Server) Close(ctx context.Context) error {
	s.end.Do(func() {
		s.r.h.engine.Store(engineEnded)
		go s.stop()
	})
	select {
	case <-s.quiet:
		return nil
	case <-ctx.Done():
	}
	return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
}

// stop stops the engine, once no file is being replaced.
func (s *Server) stop() {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.ended = true
	s.engine.stop()
}

// Done is closed when everything is released: after Close, the end of the last
// I/O, and Close of the queues of this process.
func (s *Server) Done() <-chan struct{} { return s.released }

// release gives everything back. No I/O is under way.
func (s *Server) release() {
	for i := range s.files {
		if fd := int(s.files[i].Load()); fd >= 0 {
			_ = unix.Close(fd) // read and written by the kernel alone, which has reported what failed
		}
	}
	s.handing.Lock()
	defer s.handing.Unlock()
	s.ring.close()
	s.data.close()
}

// newMemory makes a memfd that keeps its length, and maps it; or takes the heap.
func newMemory(name string, n int, heap bool) (memory, error) {
	if heap {
		mem := make([]byte, n+pageBytes)
		at := -int(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (pageBytes - 1)
		return memory{-1, mem[at : at+n : at+n]}, nil
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return memory{fd: -1}, fmt.Errorf("gio: %w", os.NewSyscallError("memfd_create", err))
	}
	m := memory{fd: fd}
	if err = os.NewSyscallError("ftruncate", unix.Ftruncate(fd, int64(n))); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		err = os.NewSyscallError("seal", err)
	}
	if err == nil {
		m.mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		m.close()
		return memory{fd: -1}, fmt.Errorf("gio: %d bytes of %s: %w", n, name, err)
	}
	return m, nil
}

func (m *memory) close() {
	if m.fd < 0 {
		return
	}
	if m.mem != nil {
		_ = unix.Munmap(m.mem) // ours, so it succeeds
	}
	_ = unix.Close(m.fd) // memory, which has nothing to write back
	m.fd, m.mem = -1, nil
}
