package resp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

// memory is a Receiver that reads in pieces of a few bytes.
type memory struct {
	src   io.Reader
	p     []byte
	piece int
}

func (m *memory) Receive(head []byte, rest int64) error {
	m.p = append(m.p, head...)
	for room := make([]byte, min(int64(m.piece), rest)); rest > 0; {
		n, err := m.src.Read(room[:min(int64(len(room)), rest)])
		m.p = append(m.p, room[:n]...)
		rest -= int64(n)
		if n == 0 && err != nil {
			return err
		}
	}
	return nil
}

var errRefused = errors.New("refused")

// testSink takes the values of SET and refuses those of 13 bytes.
type testSink struct {
	src   io.Reader
	piece int
	got   []*memory
}

func (s *testSink) Bulk(args [][]byte, size int64) (Receiver, error) {
	if string(args[0]) != "SET" || len(args) != 2 {
		return nil, nil
	}
	if size == 13 {
		return nil, errRefused
	}
	m := &memory{src: s.src, piece: s.piece}
	s.got = append(s.got, m)
	return m, nil
}

func quoted(p []byte) string {
	s := strconv.QuoteToASCII(string(p))
	s = strings.ReplaceAll(s[1:len(s)-1], `\"`, `"`)
	return strings.ReplaceAll(s, " ", `\x20`)
}

// transcript runs a Reader over src and tells what it delivered.
func transcript(src io.Reader, piece int) string {
	var b strings.Builder
	r := NewReader(src)
	for {
		s := &testSink{src: src, piece: piece}
		c, err := r.Next(s)
		if err != nil {
			fmt.Fprintf(&b, "! %v\n", err)
			return b.String()
		}
		b.WriteString("<")
		for i, a := range c.Args {
			if a == nil {
				m := s.got[0]
				fmt.Fprintf(&b, " {%d:%s}", c.Sizes[i], quoted(m.p))
				continue
			}
			fmt.Fprintf(&b, " %s", quoted(a))
		}
		if c.Err != nil {
			fmt.Fprintf(&b, " ERR %v", c.Err)
		}
		if c.Inline {
			b.WriteString(" inline")
		}
		b.WriteString("\n")
	}
}

func TestReaderTranscripts(t *testing.T) {
	file, err := os.ReadFile("testdata/commands.txt")
	if err != nil {
		t.Fatal(err)
	}
	cases := strings.Split(string(file), "\ncase ")[1:]
	if len(cases) < 20 {
		t.Fatalf("testdata holds %d cases", len(cases))
	}
	for _, c := range cases {
		lines := strings.SplitN(c, "\n", 3)
		t.Run(lines[0], func(t *testing.T) {
			in, err := strconv.Unquote(strings.TrimPrefix(lines[1], "> "))
			if err != nil {
				t.Fatalf("input %s: %v", lines[1], err)
			}
			want := strings.TrimRight(lines[2], "\n")
			for name, src := range map[string]io.Reader{
				"whole":         strings.NewReader(in),
				"byte by byte":  iotest.OneByteReader(strings.NewReader(in)),
				"eof with data": iotest.DataErrReader(strings.NewReader(in)),
			} {
				if got := strings.TrimRight(transcript(src, 3), "\n"); got != want {
					t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
				}
			}
		})
	}
}

func TestProtocolErrorsAreTyped(t *testing.T) {
	r := NewReader(strings.NewReader("*1\r\n!4\r\n"))
	_, err := r.Next(nil)
	var p *ProtocolError
	if !errors.Is(err, ErrProtocol) || !errors.As(err, &p) || p.Offset != 4 {
		t.Fatalf("got %v (%T)", err, err)
	}
	if _, again := r.Next(nil); again != err {
		t.Errorf("the reader went on after %v: %v", err, again)
	}
}

func command(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

func TestArgumentsBeyondTheHeldLimitAreDropped(t *testing.T) {
	many := make([]string, 200_000)
	for i := range many {
		many[i] = "MGET"
	}
	cases := map[string]string{
		"one long key":    command("GET", strings.Repeat("k", MaxHeld+1)),
		"many short keys": command(many...),
		"long name":       command(strings.Repeat("N", MaxHeld+1), "x"),
	}
	for name, in := range cases {
		t.Run(name, func(t *testing.T) {
			r := NewReader(strings.NewReader(in + command("PING")))
			c, err := r.Next(nil)
			if err != nil || !errors.Is(c.Err, ErrArgTooLarge) {
				t.Fatalf("got %v, %v", c, err)
			}
			if c, err = r.Next(nil); err != nil || c.Err != nil || string(c.Args[0]) != "PING" {
				t.Fatalf("out of sync: %v, %v", c, err)
			}
		})
	}
}

func TestManyArgumentsKeepTheirBytes(t *testing.T) {
	args := []string{"MGET"}
	for i := range 20_000 {
		args = append(args, fmt.Sprintf("key-%d", i))
	}
	c, err := NewReader(strings.NewReader(command(args...))).Next(&testSink{})
	if err != nil || c.Err != nil || len(c.Args) != len(args) {
		t.Fatalf("got %v, %v", c.Err, err)
	}
	for i, a := range args {
		if string(c.Args[i]) != a || c.Sizes[i] != int64(len(a)) {
			t.Fatalf("argument %d is %q, want %q", i, c.Args[i], a)
		}
	}
}

// fixed reads into the same memory again and again, so that any size fits.
type fixed struct {
	src   io.Reader
	p     []byte
	total int64
}

func (f *fixed) Bulk(_ [][]byte, _ int64) (Receiver, error) { return f, nil }
func (f *fixed) Receive(head []byte, rest int64) error {
	f.total += int64(len(head)) + rest
	for rest > 0 {
		n, err := f.src.Read(f.p[:min(int64(len(f.p)), rest)])
		if err != nil {
			return err
		}
		rest -= int64(n)
	}
	return nil
}

func TestLargeValueIsReadIntoTheReceiver(t *testing.T) {
	const size = MaxBulk
	head := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", size)
	src := io.MultiReader(strings.NewReader(head), io.LimitReader(zeros{}, size), strings.NewReader("\r\n"+command("PING")))
	f := &fixed{src: src, p: make([]byte, 1<<20)}
	r := NewReader(src)
	c, err := r.Next(f)
	if err != nil || c.Err != nil || f.total != size || c.Sizes[2] != size {
		t.Fatalf("got %v, %v after %d bytes", c, err, f.total)
	}
	if c, err = r.Next(f); err != nil || string(c.Args[0]) != "PING" {
		t.Fatalf("out of sync: %v, %v", c, err)
	}
	if cap(r.hold) > 4096 {
		t.Errorf("the reader holds %d bytes after a value that it passed on", cap(r.hold))
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBuffered(t *testing.T) {
	r := NewReader(strings.NewReader(command("PING") + command("PING")))
	for _, want := range []int{len(command("PING")), 0} {
		if _, err := r.Next(nil); err != nil || r.Buffered() != want {
			t.Fatalf("%d bytes buffered, want %d (%v)", r.Buffered(), want, err)
		}
	}
}

func TestResetStartsAfresh(t *testing.T) {
	r := NewReader(strings.NewReader("*x\r\n"))
	if _, err := r.Next(nil); err == nil {
		t.Fatal("accepted *x")
	}
	r.Reset(strings.NewReader("*y\r\n"))
	_, err := r.Next(nil)
	var p *ProtocolError
	if !errors.As(err, &p) || p.Offset != 0 {
		t.Fatalf("got %v", err)
	}
}

func TestReaderDoesNotAllocate(t *testing.T) {
	in := []byte(command("SET", "model@1@0@abcdef@bfloat16", strings.Repeat("v", 40_000), "PX", "1000"))
	src := bytes.NewReader(in)
	r := NewReader(src)
	f := &fixed{src: src, p: make([]byte, 1<<16)}
	n := testing.AllocsPerRun(100, func() {
		src.Reset(in)
		if c, err := r.Next(f); err != nil || c.Err != nil {
			t.Fatal(c, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per command", n)
	}
}
