package hangfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnsupported means that nothing can be mounted here. Test with errors.Is.
var ErrUnsupported = errors.New("hangfs: needs /dev/fuse and the privilege to mount")

// FS is a mounted file system. All methods are safe for concurrent use.
type FS struct {
	dir   string
	fd    int
	names []string // node 2 and so on
	files [][]byte
	stop  int           // closed to end the server
	done  chan struct{} // the server has ended

	mu      sync.Mutex
	hang    bool
	waiting []request
}

// Mount shows files, by name, in dir, which must exist and be empty. The bytes
// must not change until Close. Errors match ErrUnsupported.
func Mount(dir string, files map[string][]byte) (*FS, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, unix.Getuid(), unix.Getgid())
	if err := unix.Mount("hangfs", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, options); err != nil {
		return nil, fmt.Errorf("%w: mount: %w", ErrUnsupported, errors.Join(err, unix.Close(fd)))
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("hangfs: pipe: %w", errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH), unix.Close(fd)))
	}
	f := &FS{dir: dir, fd: fd, names: slices.Sorted(maps.Keys(files)), stop: ends[1], done: make(chan struct{})}
	for _, name := range f.names {
		f.files = append(f.files, files[name])
	}
	go f.serve(ends[0])
	return f, nil
}

// Open opens a file for reading; the caller closes the descriptor. Go's os.Open
// must not be used: it asks the server from within the scheduler, which may have
// stopped the server.
func (f *FS) Open(name string) (int, error) {
	return unix.Open(filepath.Join(f.dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// longest is how long a hang lasts at most. A process that dies while its own
// server hangs can not end, nor be killed: its threads wait for each other in
// the kernel. So a test that fails must not leave it that way.
const longest = 10 * time.Second

// Hang makes reads that arrive from now on wait, for 10 seconds at most.
func (f *FS) Hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = true
	time.AfterFunc(longest, f.Answer)
}

// Waiting is how many reads have arrived and were not answered.
func (f *FS) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiting)
}

// Answer answers the reads that wait and those to come.
func (f *FS) Answer() {
	f.mu.Lock()
	waiting := f.waiting
	f.hang, f.waiting = false, nil
	f.mu.Unlock()
	for _, r := range waiting {
		f.reply(r)
	}
}

// Close answers what waits, unmounts, and ends the server. Files must be closed
// before: one that is not gets errors from then on.
func (f *FS) Close() error {
	f.Answer()
	err := unix.Unmount(f.dir, 0)
	// The kernel closes files that a ring had some moments after the ring itself.
	for end := time.Now().Add(longest); err == unix.EBUSY && time.Now().Before(end); err = unix.Unmount(f.dir, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("hangfs: unmount: %w", err), unix.Unmount(f.dir, unix.MNT_DETACH))
	}
	_ = unix.Close(f.stop) // a pipe
	<-f.done
	return err
}

// serve takes requests until Close. That the file system is unmounted does not
// end it: a process with mounts of its own, made meanwhile by anybody, has a copy.
func (f *FS) serve(stop int) {
	defer close(f.done)
	defer func() { _, _ = unix.Close(f.fd), unix.Close(stop) }() // the kernel then fails what is asked
	buf := make([]byte, 1<<18)
	for {
		fds := []unix.PollFd{{Fd: int32(f.fd), Events: unix.POLLIN}, {Fd: int32(stop)}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR || fds[1].Revents != 0 {
			return
		}
		n, err := unix.Read(f.fd, buf)
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: a request was taken back
			continue
		default:
			return
		}
		r, ok := decode(buf[:n])
		if !ok || r.op == opForget || r.op == opBatchForget || r.op == opInterrupt {
			continue // these have no answer; who interrupts a read waits on
		}
		if r.op == opRead && f.keep(r) {
			continue
		}
		f.reply(r)
	}
}

// keep puts a read aside while the server hangs.
func (f *FS) keep(r request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hang {
		r.body = bytes.Clone(r.body)
		f.waiting = append(f.waiting, r)
	}
	return f.hang
}

func (f *FS) reply(r request) {
	body, errno := f.answer(r)
	_, _ = unix.Write(f.fd, encode(r.unique, errno, body)) // who asked may have gone
}

// answer does what a request asks for.
func (f *FS) answer(r request) ([]byte, unix.Errno) {
	switch r.op {
	case opInit:
		return initReply(), 0
	case opLookup:
		i := slices.Index(f.names, string(bytes.TrimRight(r.body, "\x00")))
		if i < 0 {
			return nil, unix.ENOENT
		}
		return entryReply(uint64(i)+2, len(f.files[i])), 0
	case opRelease, opFlush:
		return nil, 0
	}
	if r.node == rootNode && r.op == opGetattr {
		return attrReply(rootNode, 0), 0
	}
	if r.node < 2 || r.node-2 >= uint64(len(f.files)) {
		return nil, unix.ENOSYS
	}
	file := f.files[r.node-2]
	switch r.op {
	case opGetattr:
		return attrReply(r.node, len(file)), 0
	case opOpen:
		return openReply(), 0
	case opRead:
		off, n := le.Uint64(r.body[8:]), uint64(le.Uint32(r.body[16:]))
		from := min(off, uint64(len(file)))
		return file[from:min(from+n, uint64(len(file)))], 0
	}
	return nil, unix.ENOSYS
}
