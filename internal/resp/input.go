package resp

import (
	"bytes"
	"io"
)

const inputBytes = 16 << 10

// input is the buffered receiving side that Reader and Client share.
type input struct {
	src  io.Reader
	buf  []byte // fixed
	r, w int    // buf[r:w] is received and not consumed
	base int64  // stream offset of buf[0]

	wait func() error // called before each read; may be nil
}

func (in *input) init(src io.Reader) {
	if in.buf == nil {
		in.buf = make([]byte, inputBytes)
	}
	in.src, in.r, in.w, in.base = src, 0, 0, 0
}

// offset is the number of bytes consumed so far.
func (in *input) offset() int64 { return in.base + int64(in.r) }

func (in *input) buffered() int { return in.w - in.r }

// skipEmpty skips empty lines that have come.
func (in *input) skipEmpty() {
	for in.r < in.w {
		switch {
		case in.buf[in.r] == '\n':
			in.r++
		case in.buf[in.r] == '\r' && in.r+1 < in.w && in.buf[in.r+1] == '\n':
			in.r += 2
		default:
			return
		}
	}
}

// read is one read of the source that makes progress or fails.
func (in *input) read(p []byte) (int, error) {
	for range 100 {
		if in.wait != nil {
			if err := in.wait(); err != nil {
				return 0, err
			}
		}
		n, err := in.src.Read(p)
		if n > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// fill receives more bytes. The caller has left room: buffered() < len(buf).
func (in *input) fill() error {
	if in.r > 0 {
		in.base += int64(in.r)
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	n, err := in.read(in.buf[in.w:])
	in.w += n
	return err
}

// line consumes up to and including LF and returns the bytes before it,
// without a CR; crlf reports whether there was one. The bytes die with the next
// call. A line without an end within the buffer is tooLong.
func (in *input) line(tooLong string) (p []byte, crlf bool, err error) {
	seen := 0
	for {
		if i := bytes.IndexByte(in.buf[in.r+seen:in.w], '\n'); i >= 0 {
			p = in.buf[in.r : in.r+seen+i]
			in.r += seen + i + 1
			if n := len(p); n > 0 && p[n-1] == '\r' {
				return p[:n-1], true, nil
			}
			return p, false, nil
		}
		seen = in.buffered()
		if seen >= MaxInline {
			return nil, false, in.bad(tooLong)
		}
		if err := in.fill(); err != nil {
			return nil, false, err
		}
	}
}

// full consumes len(p) bytes into p: what is buffered first, then straight
// from the source.
func (in *input) full(p []byte) error {
	n := in.take(p)
	for n < len(p) {
		m, err := in.read(p[n:])
		if err != nil {
			return err
		}
		in.base += int64(m)
		n += m
	}
	return nil
}

// peek returns what is buffered of the next size bytes.
func (in *input) peek(size int64) []byte {
	return in.buf[in.r : in.r+int(min(size, int64(in.buffered())))]
}

// take consumes buffered bytes only.
func (in *input) take(p []byte) int {
	n := copy(p, in.buf[in.r:in.w])
	in.r += n
	return n
}

// discard consumes n bytes through the buffer.
func (in *input) discard(n int64) error {
	for n > 0 {
		if in.r == in.w {
			if err := in.fill(); err != nil {
				return err
			}
		}
		step := min(n, int64(in.buffered()))
		in.r += int(step)
		n -= step
	}
	return nil
}

// crlf consumes the end of a bulk string.
func (in *input) crlf() error {
	for in.buffered() < 2 {
		if err := in.fill(); err != nil {
			return err
		}
	}
	if in.buf[in.r] != '\r' || in.buf[in.r+1] != '\n' {
		return in.bad("bulk string is not ended by CRLF")
	}
	in.r += 2
	return nil
}

// bad is a ProtocolError at the current place.
func (in *input) bad(reason string) error {
	return &ProtocolError{Reason: reason, Offset: in.offset()}
}

// number parses a decimal without sign; false when it is none or too long.
func number(p []byte) (int64, bool) {
	if len(p) == 0 || len(p) > 18 {
		return 0, false
	}
	var n int64
	for _, c := range p {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}
