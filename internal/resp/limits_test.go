package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// countedRoom is a Room of limit bytes that remembers the most it gave.
type countedRoom struct{ limit, used, most int64 }

func (c *countedRoom) Take(n int64) bool {
	if c.used+n > c.limit {
		return false
	}
	c.used += n
	c.most = max(c.most, c.used)
	return true
}

func (c *countedRoom) Give(n int64) { c.used -= n }

// The header of an argument alone takes little memory.
func TestRoomFollowsTheBytes(t *testing.T) {
	room := &countedRoom{limit: 1 << 30}
	r := NewReader(strings.NewReader("*2\r\n$3\r\nDEL\r\n$4000000\r\n" + strings.Repeat("x", 70_000)))
	r.SetRoom(room)
	if _, err := r.Next(nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("half a command: %v", err)
	}
	if room.most > 1<<20 {
		t.Errorf("%d bytes were taken for 70,000 that came", room.most)
	}
	r.Close()
	if room.used != 0 {
		t.Errorf("%d bytes are not given back", room.used)
	}
}

// What arrives piece by piece, into memory that grows, is what was sent.
func TestLargeArgumentsKeepTheirBytes(t *testing.T) {
	large := make([]byte, 1_500_000)
	for i := range large {
		large[i] = byte(i * 7 >> 3)
	}
	command := fmt.Appendf(nil, "*4\r\n$3\r\nDEL\r\n$%d\r\n%s\r\n$2\r\nab\r\n$%d\r\n%s\r\n", len(large), large, len(large), large)
	room := &countedRoom{limit: 1 << 30}
	for _, src := range []io.Reader{bytes.NewReader(command), iotest.HalfReader(bytes.NewReader(command))} {
		r := NewReader(src)
		r.SetRoom(room)
		cmd, err := r.Next(nil)
		if err != nil || cmd.Err != nil || len(cmd.Args) != 4 {
			t.Fatalf("%v", err)
		}
		if !bytes.Equal(cmd.Args[1], large) || string(cmd.Args[2]) != "ab" || !bytes.Equal(cmd.Args[3], large) {
			t.Error("the arguments are not what was sent")
		}
		if _, err := r.Next(nil); !errors.Is(err, io.EOF) || room.used != 0 {
			t.Errorf("%v, %d bytes are not given back", err, room.used)
		}
	}
}

func TestWithoutRoomTheStreamStaysInSync(t *testing.T) {
	room := &countedRoom{limit: 300 << 10}
	r := NewReader(strings.NewReader("*2\r\n$3\r\nDEL\r\n$1000000\r\n" + strings.Repeat("x", 1_000_000) + "\r\nPING\r\n"))
	r.SetRoom(room)
	if cmd, err := r.Next(nil); err != nil || !errors.Is(cmd.Err, ErrBusy) {
		t.Fatalf("%v", err)
	}
	if cmd, err := r.Next(nil); err != nil || cmd.Err != nil || string(cmd.Args[0]) != "PING" {
		t.Errorf("%v", err)
	}
	if room.used != 0 {
		t.Errorf("%d bytes are not given back", room.used)
	}
}

func TestLimits(t *testing.T) {
	limits := Limits{Args: 3, Bytes: 1000}
	for text, good := range map[string]bool{
		"*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n": true,
		"a b c\r\n": true,
		"*1\r\n$900\r\n" + strings.Repeat("x", 902): false, // no CRLF
		"*4\r\n":                           false,
		"a b c d\r\n":                      false,
		"*2\r\n$3\r\nSET\r\n$65011712\r\n": false,
		"*2\r\n$600\r\n" + strings.Repeat("x", 600):                  false, // an end
		"*2\r\n$600\r\n" + strings.Repeat("x", 600) + "\r\n$600\r\n": false,
	} {
		r := NewReader(strings.NewReader(text))
		r.Limit(limits)
		if cmd, err := r.Next(nil); (err == nil) != good {
			t.Errorf("%.40q: %v, %v", text, cmd, err)
		}
	}
	r := NewReader(strings.NewReader("a b c d\r\n"))
	r.Limit(limits)
	r.Limit(Limits{})
	if cmd, err := r.Next(nil); err != nil || len(cmd.Args) != 4 {
		t.Errorf("without limits again: %v, %v", cmd, err)
	}
}
