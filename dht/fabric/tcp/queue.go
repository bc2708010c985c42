package tcp

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// queue sends frames over a stream of calls, each whole. What does not fit into
// the stream at once is sent by one goroutine, so that nobody waits for it, nor
// can anybody's deadline cut a frame in two.
type queue struct {
	conn   net.Conn
	raw    syscall.RawConn // nil: nothing is sent at once
	frames chan []byte

	mu   sync.Mutex // held while something is sent
	rest []byte     // of a frame of which the stream took only the beginning; goes first
}

// atOnce is the longest frame that its own caller sends, in bytes.
const atOnce = 64 << 10

func newQueue(conn net.Conn) *queue {
	q := &queue{conn: conn, frames: make(chan []byte, 64)}
	if sc, ok := conn.(syscall.Conn); ok {
		q.raw, _ = sc.SyscallConn() // without it the goroutine sends all
	}
	return q
}

// try sends a frame if nothing else is being sent and the stream has room; it
// does not wait. It reports whether the frame is on its way. Errors are left to
// the goroutine: the stream does not get better.
func (q *queue) try(frame []byte) bool {
	if q.raw == nil || len(frame) > atOnce || len(q.frames) > 0 || !q.mu.TryLock() {
		return false
	}
	defer q.mu.Unlock()
	if q.rest != nil {
		return false
	}
	sent := 0
	err := q.raw.Write(func(fd uintptr) bool {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno == 0 {
			sent = int(n)
		}
		return true
	})
	if err != nil || sent == 0 {
		return false
	}
	if sent < len(frame) {
		q.rest = frame[sent:]
		select {
		case q.frames <- nil: // wakes the goroutine, which otherwise is awake
		default:
		}
	}
	return true
}

// run sends what is queued until the stream or ctx ends.
func (q *queue) run(ctx context.Context) error {
	var batch net.Buffers
	for {
		select {
		case f := <-q.frames:
			batch = append(batch[:0], f)
		case <-ctx.Done():
			return nil
		}
	more:
		for len(batch) < cap(q.frames) {
			select {
			case f := <-q.frames:
				batch = append(batch, f)
			default:
				break more
			}
		}
		if err := q.send(batch); err != nil {
			return err
		}
		clear(batch)
	}
}

// send sends a batch of frames after what is left of an earlier one.
func (q *queue) send(batch net.Buffers) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.conn.SetWriteDeadline(time.Now().Add(stallLimit)); err != nil {
		return err
	}
	if q.rest != nil {
		if _, err := q.conn.Write(q.rest); err != nil {
			return err
		}
		q.rest = nil
	}
	if _, err := batch.WriteTo(q.conn); err != nil {
		return err
	}
	return q.conn.SetWriteDeadline(time.Time{}) // try must not meet an old one
}
