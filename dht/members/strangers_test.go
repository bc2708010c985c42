package members

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// counting is a transport that counts what a rank reads from its streams, and
// how many are open.
type counting struct {
	*memberlist.NetTransport
	streams chan net.Conn
	done    chan struct{}

	read           atomic.Int64
	accepted, open atomic.Int64
	most           atomic.Int64
}

func count(t *testing.T) *counting {
	t.Helper()
	c := &counting{streams: make(chan net.Conn), done: make(chan struct{})}
	var err error
	for range 10 {
		c.NetTransport, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{"127.0.0.1"}, Logger: log.New(io.Discard, "", 0),
		})
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(func() { close(c.done) }))
	go func() {
		for {
			select {
			case conn := <-c.NetTransport.StreamCh():
				c.accepted.Add(1)
				c.most.Store(max(c.most.Load(), c.open.Add(1)))
				select {
				case c.streams <- &counted{Conn: conn, by: c}:
				case <-c.done:
				}
			case <-c.done:
				return
			}
		}
	}()
	return c
}

func (c *counting) StreamCh() <-chan net.Conn { return c.streams }

func (c *counting) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	conn, err := c.NetTransport.DialAddressTimeout(a, d)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Conn: conn, by: c}, nil
}

type counted struct {
	net.Conn
	by   *counting
	once sync.Once
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.by.read.Add(int64(n))
	return n, err
}

func (c *counted) Close() error {
	c.once.Do(func() { c.by.open.Add(-1) })
	return c.Conn.Close()
}

// with makes a rank use the transport.
func (c *counting) with(o Options) Options {
	o.transport, o.Bind = c, fmt.Sprint("127.0.0.1:", c.GetAutoBindPort())
	return o
}

// announcement begins a gossip message of 20 MiB, as far as anybody can write it
// who does not know the secret.
func announcement() []byte {
	b := append([]byte{244, byte(len(label("job")))}, label("job")...)
	b = append(b, 10) // encrypted
	return binary.BigEndian.AppendUint32(b, 20<<20)
}

// pour writes up to 20 MiB after an announcement, until the other side ends it.
func pour(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err := conn.Write(announcement())
	for piece, sent := make([]byte, 1<<16), 0; err == nil && sent < 20<<20; sent += len(piece) {
		_, err = conn.Write(piece)
	}
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}

// TestAnnouncedBytes: what a stranger announces is neither read nor kept, be it
// the one that opens a stream or the one at a seed's address.
func TestAnnouncedBytes(t *testing.T) {
	t.Parallel()
	seed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer seed.Close()
	var all sync.WaitGroup
	defer all.Wait()
	defer seed.Close()
	answered := make(chan struct{}, 1000)
	all.Go(func() {
		for {
			conn, err := seed.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				pour(conn)
				answered <- struct{}{}
			})
		}
	})
	c := count(t)
	a := start(t, c.with(options(0, 1, seed.Addr().String())))
	var strangers sync.WaitGroup
	for range 8 {
		strangers.Go(func() {
			conn, err := net.Dial("tcp", a.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			pour(conn)
		})
	}
	strangers.Wait()
	for range 2 {
		select {
		case <-answered:
		case <-time.After(30 * time.Second):
			t.Fatal("the rank did not ask its seed")
		}
	}
	if n := c.read.Load(); n > 64<<10 {
		t.Errorf("%d bytes were read from strangers", n)
	}
}

// TestSilentStreams: streams of strangers that send nothing are bounded in
// number, and ranks come in meanwhile.
func TestSilentStreams(t *testing.T) {
	t.Parallel()
	c := count(t)
	opt := options(0, 1)
	opt.Timers.Dial = time.Minute
	a := start(t, c.with(opt))
	const strangers = 400
	for range strangers {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	b := start(t, options(1, 1, a.Addr()))
	allSee(t, a, b)
	eventually(t, "all streams are taken", func() bool { return c.accepted.Load() >= strangers })
	if n := c.most.Load(); n > strangers/2 {
		t.Errorf("%d streams were open at once", n)
	}
}

// TestStrangersInTheLog: strangers cause a few lines, and these say how many.
func TestStrangersInTheLog(t *testing.T) {
	t.Parallel()
	c := count(t)
	a := start(t, c.with(options(0, 1)))
	packets, err := net.Dial("udp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	const each = 200
	for range each {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
		_, _ = packets.Write(announcement())
		_, _ = packets.Write([]byte("\xf4\x05other and more"))
		_, _ = packets.Write([]byte("noise"))
	}
	b := start(t, options(1, 1, a.Addr()))
	allSee(t, a, b)
	lines := append(a.log.Lines("level=WARN"), a.log.Lines("level=ERROR")...)
	if len(lines) == 0 || len(lines) > 40 {
		t.Errorf("%d lines for %d strangers", len(lines), 4*each)
	}
}
