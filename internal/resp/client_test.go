package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/race"
)

// store is a server of SET, GET and a few others, made of this package's parts.
type store struct {
	data map[string][]byte
	conn net.Conn
	room []byte
}

func (s *store) Receive(head []byte, rest int64) error {
	_, err := io.ReadFull(s.conn, s.room[copy(s.room, head):])
	return err
}

func (s *store) Bulk(args [][]byte, size int64) (Receiver, error) {
	if len(args) != 2 || string(args[0]) != "SET" {
		return nil, nil
	}
	if cap(s.room) < int(size) {
		s.room = make([]byte, size)
	}
	s.room = s.room[:size]
	return s, nil
}

func (s *store) serve(c net.Conn) {
	defer c.Close()
	s.conn = c
	r := NewReader(c)
	var w Writer
	for {
		cmd, err := r.Next(s)
		if errors.Is(err, ErrProtocol) {
			w.Error("ERR " + err.Error())
			_ = w.Flush(c)
			return
		}
		if err != nil {
			return
		}
		if !s.answer(cmd, &w) {
			return
		}
		if r.Buffered() == 0 {
			if err := w.Flush(c); err != nil {
				return
			}
		}
	}
}

func (s *store) answer(cmd *Command, w *Writer) bool {
	switch string(cmd.Args[0]) {
	case "SET":
		old := s.data[string(cmd.Args[1])]
		s.data[string(cmd.Args[1])], s.room = s.room, old
		w.Simple("OK")
	case "GET":
		v, ok := s.data[string(cmd.Args[1])]
		if !ok {
			w.Null()
			break
		}
		w.BulkRef(v)
	case "HANGUP":
		return false
	case "SILENCE":
	case "MAP":
		w.SetProto(3)
		w.Map(3)
		w.BulkString("n")
		w.Int(7)
		w.BulkString("f")
		w.Double(0.5)
		w.BulkString("list")
		w.Array(3)
		w.Bool(true)
		w.Null()
		w.Verbatim("txt", "hi")
	default:
		w.Error("ERR unknown command " + string(cmd.Args[0]))
	}
	return true
}

// dialPair returns a Client of a fresh store.
func dialPair(t testing.TB, timeout time.Duration) *Client {
	t.Helper()
	a, b := pair(t)
	s := &store{data: map[string][]byte{}}
	go s.serve(b)
	c := NewClient(a, timeout)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientSetAndGet(t *testing.T) {
	c := dialPair(t, time.Minute)
	for _, size := range []int{0, 1, 5000, 3 << 20} {
		value := bytes.Repeat([]byte{byte(size), '\r', '\n', 7}, size/4+1)[:size]
		if err := c.Set("k", value); err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, size+10)
		n, err := c.Get("k", dst)
		if err != nil || !bytes.Equal(dst[:n], value) {
			t.Fatalf("size %d: got %d bytes, %v", size, n, err)
		}
		r, err := c.Do("GET", "k")
		if err != nil || r.Kind != KindBulk || !bytes.Equal(r.Str, value) {
			t.Fatalf("size %d: Do got %d bytes, %v", size, len(r.Str), err)
		}
	}
}

func TestClientErrorsThatLeaveItUsable(t *testing.T) {
	c := dialPair(t, time.Minute)
	if err := c.Set("k", make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	small := make([]byte, 99_999)
	cases := map[string]struct {
		do   func() error
		want error
	}{
		"absent":         {func() error { _, err := c.Get("absent", small); return err }, ErrNull},
		"too large":      {func() error { _, err := c.Get("k", small); return err }, ErrShortBuffer},
		"unknown":        {func() error { _, err := c.Do("NONSENSE"); return err }, ErrServer},
		"error for size": {func() error { c.Send("NONSENSE"); c.Flush(); _, err := c.ReceiveInto(small); return err }, ErrServer},
		"error for OK":   {func() error { c.Send("NONSENSE"); c.Flush(); return c.ReceiveOK() }, ErrServer},
		"null for OK":    {func() error { c.Send("GET", "absent"); c.Flush(); return c.ReceiveOK() }, ErrNull},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := tc.do(); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if n, err := c.Get("k", make([]byte, 100_000)); err != nil || n != 100_000 {
				t.Fatalf("afterwards: %d, %v", n, err)
			}
		})
	}
	if n, _ := c.Get("k", small); n != 100_000 {
		t.Errorf("a value that is too large reports %d bytes", n)
	}
	var se *ServerError
	if _, err := c.Do("NONSENSE"); !errors.As(err, &se) || se.Code() != "ERR" || se.Text != "ERR unknown command NONSENSE" {
		t.Errorf("got %#v", se)
	}
}

func TestClientPipeline(t *testing.T) {
	c := dialPair(t, time.Minute)
	value := []byte("some value")
	for i := range 50 {
		c.SendValue(2, value, "SET", fmt.Sprint("k", i), "PX", "5")
		c.Send("GET", fmt.Sprint("k", i))
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	dst := make([]byte, 100)
	for c.Waiting() > 0 {
		if err := c.ReceiveOK(); err != nil {
			t.Fatal(err)
		}
		if n, err := c.ReceiveInto(dst); err != nil || string(dst[:n]) != string(value) {
			t.Fatalf("got %q, %v", dst[:n], err)
		}
	}
	if _, err := c.Receive(); err == nil {
		t.Error("received an answer to nothing")
	}
	if _, err := c.Do("GET", "k1"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestClientReadsRESP3(t *testing.T) {
	c := dialPair(t, time.Minute)
	r, err := c.Do("MAP")
	if err != nil || r.Kind != KindMap {
		t.Fatalf("got %+v, %v", r, err)
	}
	list := r.Field("list").Elems
	if r.Field("n").Int != 7 || r.Field("f").Float != 0.5 || len(list) != 3 || !r.Field("none").Null() {
		t.Fatalf("got %+v", r)
	}
	if list[0].Kind != KindBool || list[0].Text() != "1" || !list[1].Null() || list[2].Text() != "hi" {
		t.Fatalf("got %+v", list)
	}
}

func TestClientBreaksOnce(t *testing.T) {
	cases := map[string]struct {
		reply string // then the server hangs up
		do    func(c *Client) error
		want  error
	}{
		"hangs up":             {"", func(c *Client) error { _, err := c.Do("GET", "k"); return err }, io.ErrUnexpectedEOF},
		"half a value":         {"$10\r\nabc", func(c *Client) error { _, err := c.Get("k", make([]byte, 99)); return err }, io.ErrUnexpectedEOF},
		"half a dropped value": {"$10\r\nabc", func(c *Client) error { _, err := c.Get("k", nil); return err }, io.ErrUnexpectedEOF},
		"value runs on":        {"$1\r\nabc\r\n", func(c *Client) error { _, err := c.Get("k", make([]byte, 99)); return err }, ErrProtocol},
		"not a value":          {":1\r\n", func(c *Client) error { _, err := c.Get("k", nil); return err }, ErrProtocol},
		"not OK":               {"+NO\r\n", func(c *Client) error { return c.Set("k", nil) }, ErrProtocol},
		"no type":              {"\r\n", func(c *Client) error { _, err := c.Do("PING"); return err }, ErrProtocol},
		"unknown type":         {"?\r\n", func(c *Client) error { _, err := c.Do("PING"); return err }, ErrProtocol},
		"bad integer":          {":x\r\n", func(c *Client) error { _, err := c.Do("PING"); return err }, ErrProtocol},
		"nested too deep":      {strings.Repeat("*1\r\n", 30), func(c *Client) error { _, err := c.Do("PING"); return err }, ErrProtocol},
		"size beyond 512 MiB":  {"$536870913\r\n", func(c *Client) error { _, err := c.Do("PING"); return err }, ErrProtocol},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			go func() {
				buf := make([]byte, 100)
				_, _ = b.Read(buf)
				_, _ = io.WriteString(b, tc.reply)
				_ = b.Close()
			}()
			c := NewClient(a, time.Minute)
			err := tc.do(c)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if _, again := c.Do("PING"); again != err {
				t.Errorf("second error is %v, first was %v", again, err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if _, err := c.Do("PING"); !errors.Is(err, ErrClosed) {
				t.Errorf("after close: %v", err)
			}
		})
	}
}

func TestClientDeadlines(t *testing.T) {
	t.Run("no answer", func(t *testing.T) {
		c := dialPair(t, 20*time.Millisecond)
		if _, err := c.Do("SILENCE"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nobody reads", func(t *testing.T) {
		a, _ := pair(t)
		c := NewClient(a, 20*time.Millisecond)
		if err := c.Set("k", make([]byte, 8<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDial(t *testing.T) {
	if _, err := Dial("unix", t.TempDir()+"/nobody", time.Second); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("got %v", err)
	}
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			(&store{data: map[string][]byte{}}).serve(conn)
		}
	}()
	c, err := Dial("unix", l.Addr().String(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Set("k", []byte("v")); err != nil {
		t.Error(err)
	}
}

func TestClientDoesNotAllocate(t *testing.T) {
	c := dialPair(t, time.Minute)
	value, dst := make([]byte, 200_000), make([]byte, 200_000)
	step := func() {
		if err := c.Set("key", value); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get("key", dst); err != nil {
			t.Fatal(err)
		}
	}
	step()
	step()
	// The store's side counts too: its map key is one, and pools may be
	// emptied by a collection at any time.
	limit := 2.0
	if race.On { // it makes sync.Pool forget
		limit = 12
	}
	if n := testing.AllocsPerRun(50, step); n >= limit {
		t.Errorf("%v allocations per SET and GET", n)
	}
}
