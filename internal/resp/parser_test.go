package resp

import (
	"bytes"
	"strings"
	"testing"
)

// TestParser: what is one command is parsed as Reader does it, and nothing else, whatever
// came before.
func TestParser(t *testing.T) {
	const exists = "*2\r\n$6\r\nEXISTS\r\n$3\r\nkey\r\n"
	var x Parser
	for _, c := range []struct {
		in, args string // args joined by |; "": none
	}{
		{exists, "EXISTS|key"},
		{exists[:len(exists)-1], ""},
		{exists + "*", ""},
		{exists + exists, ""},
		{exists, "EXISTS|key"},
		{"", ""},
		{"\r\n", ""},
		{"*0\r\n", ""},
		{"\r\n" + exists, "EXISTS|key"},
		{"EXISTS \"a b\"\r\n", "EXISTS|a b"},
		{"EXISTS 'a", ""},
		{"*2\r\n$6\r\nEXISTS\r\n$x\r\n", ""},
		{"GET / HTTP/1.1\r\n", ""},
		{"\x16\x03\x01", ""},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$20000\r\n" + strings.Repeat("v", 20000) + "\r\n", "SET|k|" + strings.Repeat("v", 20000)},
		{exists, "EXISTS|key"},
	} {
		var args []string
		if cmd := x.Parse([]byte(c.in)); cmd != nil {
			for _, a := range cmd.Args {
				args = append(args, string(a))
			}
		}
		if got := strings.Join(args, "|"); got != c.args {
			t.Errorf("%.60q is %.60q, want %.60q", c.in, got, c.args)
		}
	}
}

// TestEmptyLinesAreNothing: behind a command they are no reason to wait for more.
func TestEmptyLinesAreNothing(t *testing.T) {
	for in, left := range map[string]int{
		"PING\r\n\r\n": 0, "*1\r\n$4\r\nPING\r\n\r\n\n\r\n": 0, "PING\r\n\r\nPING": 4, "PING\r\n\r": 1, "PING\r\nx": 1, "PING\r\n": 0,
	} {
		rd := NewReader(strings.NewReader(in))
		if cmd, err := rd.Next(nil); err != nil || string(cmd.Args[0]) != "PING" || rd.Buffered() != left {
			t.Errorf("%q: %d bytes are left, want %d; %v", in, rd.Buffered(), left, err)
		}
	}
}

// FuzzParser: what is parsed in place is what Reader makes of it.
func FuzzParser(f *testing.F) {
	seeds(f, "testdata/commands.txt", func(s string) { f.Add([]byte(s)) })
	f.Add([]byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n"))
	f.Add([]byte("*1\r\n$0000004\r\nPING\r\n"))
	f.Add([]byte("*-1\r\n*1\r\n$-1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var x Parser
		if !x.plain(in) {
			return
		}
		r := NewReader(bytes.NewReader(in))
		cmd, err := r.Next(nil)
		if err != nil || cmd.Err != nil || cmd.Inline || r.Buffered() > 0 || len(cmd.Args) != len(x.cmd.Args) {
			t.Fatalf("%q: %+v, %v; in place %+v", in, cmd, err, x.cmd)
		}
		for i, a := range cmd.Args {
			if !bytes.Equal(a, x.cmd.Args[i]) || cmd.Sizes[i] != x.cmd.Sizes[i] {
				t.Fatalf("%q: argument %d is %q, in place %q", in, i, a, x.cmd.Args[i])
			}
		}
	})
}
