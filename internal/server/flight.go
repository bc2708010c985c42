package server

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

	leastFlight = 64 << 20
	mostFlight  = 1 << 30

	// transitShare is the part of memory that values which arrive from others
	// than the rank's own user may take, and stalledShare the part that replies
	// which are not read may borrow without being hurried.
	transitShare = 2
	stalledShare = 4
)

// flight bounds the kernel's memory for replies that were sent and not read, by
// the send buffers that it lets connections have: some have wide ones, which
// count, and all others narrow ones, of some 256 KiB at most. It may be used by
// any goroutine.
type flight struct {
	limit int64
	used  atomic.Int64 // by wide buffers
	wide  atomic.Int64 // how many
}

// decide gives the wire a wide send buffer if there is one left, for as long as
// the wire is open, or else a narrow one.
func (f *flight) decide(w *wire) {
	w.decided = true
	want := tcpBuffer()
	if w.local {
		want = 2 * unixBuffer // the kernel doubles what it is asked for
	}
	if !admission.AddWithin(&f.used, want, f.limit) {
		if !w.local {
			_ = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, narrowBuffer) // a hint
		}
		return
	}
	w.wide = want
	f.wide.Add(1)
	if !w.local {
		return // the kernel widens it as it is used
	}
	_ = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, unixBuffer) // a hint
	if got, err := unix.GetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && int64(got) < want {
		w.wide = int64(got)
		f.used.Add(w.wide - want)
	}
}

// giveBack ends what decide gave.
func (f *flight) giveBack(w *wire) {
	if w.wide > 0 {
		f.used.Add(-w.wide)
		f.wide.Add(-1)
		w.wide = 0
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

// defaultFlight is the limit of Options.InFlight unless that is given.
func defaultFlight() int64 {
	memory := min(machineMemory(), memlimit.Node{Root: "/"}.Limit().Bytes)
	return min(max(memory/16, leastFlight), mostFlight)
}

// InFlight is what replies that clients have not read take, and values and
// commands that have not arrived as a whole.
type InFlight struct {
	Bytes    int64 `json:"bytes"`           // in send buffers, not read yet, overhead included
	Buffers  int64 `json:"buffers"`         // size of the wide send buffers
	Limit    int64 `json:"limit"`           // of Buffers
	Wide     int64 `json:"wide"`            // connections with a wide send buffer
	Stalled  int64 `json:"stalled"`         // bytes of values that replies borrow which are not read
	Arriving int64 `json:"arriving"`        // bytes of memory, of large commands that arrive
	Transit  int64 `json:"transit"`         // bytes of tiers, of values that arrive
	Strange  int   `json:"unauthenticated"` // connections that have not authenticated
}

func (s *Server) inFlight() InFlight {
	f := InFlight{
		Buffers: s.flight.used.Load(), Limit: s.flight.limit, Wide: s.flight.wide.Load(), Stalled: s.stalled.Used(),
		Arriving: s.arriving.Used(), Transit: s.transit.Used(), Strange: s.strangers.Len(),
	}
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		f.Bytes += c.wire.unread()
	}
	return f
}

// unread is how much memory the kernel has for what was sent and not read. It may
// be called from any goroutine.
func (w *wire) unread() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0
	}
	n, err := unix.IoctlGetInt(w.fd, unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return int64(n)
}
