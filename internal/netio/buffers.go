package netio

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admission"
	"cascadekv/internal/memlimit"
)

const (
	// unixBuffer is the send buffer of unix sockets with large replies, in bytes:
	// a reply that fits it is written without waiting for the reader. The kernel
	// grants unprivileged processes net.core.wmem_max at most.
	unixBuffer = 4 << 20

	// narrowBuffer is the send buffer of TCP connections that get no wide one.
	narrowBuffer = 128 << 10

	// wideFrom is how much a connection is sent before it may get a wide buffer.
	wideFrom = 128 << 10

	// leastBuffers and mostBuffers bound the default of Config.SendBuffers.
	leastBuffers = 64 << 20
	mostBuffers  = 1 << 30
)

// sendBuffers bounds the kernel's memory for replies that were sent and not read,
// by the send buffers that it lets connections have: some have wide ones, which
// count, and all others narrow ones, of some 256 KiB at most. It may be used by
// any goroutine.
type sendBuffers struct {
	limit int64
	used  atomic.Int64 // by wide buffers
	wide  atomic.Int64 // how many
}

// decide gives a connection a wide send buffer if there is one left, for as long
// as it is open, or else a narrow one.
func (b *sendBuffers) decide(c *Conn) {
	c.bufferSet = true
	want := tcpBuffer()
	if c.local {
		want = 2 * unixBuffer // the kernel doubles what it is asked for
	}
	if !admission.AddWithin(&b.used, want, b.limit) {
		if !c.local {
			_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, narrowBuffer) // a hint
		}
		return
	}
	c.wideBuffer = want
	b.wide.Add(1)
	if !c.local {
		return // the kernel widens it as it is used
	}
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, unixBuffer) // a hint
	if got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && int64(got) < want {
		c.wideBuffer = int64(got)
		b.used.Add(c.wideBuffer - want)
	}
}

// giveBack ends what decide gave.
func (b *sendBuffers) giveBack(c *Conn) {
	if c.wideBuffer > 0 {
		b.used.Add(-c.wideBuffer)
		b.wide.Add(-1)
		c.wideBuffer = 0
	}
}

// tcpBuffer is the largest send buffer that the kernel gives a TCP connection by
// itself, in bytes.
var tcpBuffer = sync.OnceValue(func() int64 {
	const usual = 4 << 20
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_wmem")
	if fields := bytes.Fields(text); err == nil && len(fields) == 3 {
		if n, err := strconv.ParseInt(string(fields[2]), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return usual
})

// defaultBuffers is a sixteenth of the memory that this process may have.
func defaultBuffers() int64 {
	return min(max(memlimit.Total()/16, leastBuffers), mostBuffers)
}

// SendBuffers is what the wide send buffers of all connections take.
type SendBuffers struct {
	Bytes int64
	Limit int64
	Wide  int64 // how many
}

// SendBuffers returns what send buffers take now.
func (p *Poller) SendBuffers() SendBuffers {
	return SendBuffers{Bytes: p.buffers.used.Load(), Limit: p.buffers.limit, Wide: p.buffers.wide.Load()}
}
