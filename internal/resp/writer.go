package resp

import (
	"encoding/json"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
)

// Writer collects replies until Flush. It is used by one goroutine; the zero
// value is ready and speaks RESP2.
type Writer struct {
	buf   []byte
	lent  *[]byte // where buf came from, for its way back
	refs  []ref
	vec   [][]byte    // backing of out, kept between flushes
	out   net.Buffers // what the current flush has left
	proto int
	size  int64 // bytes of refs
}

// ref is a borrowed value that belongs behind buf[:at].
type ref struct {
	at int
	p  []byte
}

// keepBuf is the largest buffer that outlives a flush.
const keepBuf = 16 << 10

var bufPool = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// AppendCommand appends a command of some words as a client sends it.
func AppendCommand(b []byte, words ...string) []byte {
	b = append(strconv.AppendInt(append(b, '*'), int64(len(words)), 10), "\r\n"...)
	for _, w := range words {
		b = append(strconv.AppendInt(append(b, '$'), int64(len(w)), 10), "\r\n"...)
		b = append(append(b, w...), "\r\n"...)
	}
	return b
}

// SetProto chooses the protocol of the replies that follow, 2 or 3.
func (w *Writer) SetProto(version int) { w.proto = version }

// Proto returns the protocol in use, 2 or 3.
func (w *Writer) Proto() int { return max(2, w.proto) }

// Pending returns the bytes that Flush would write, borrowed ones included.
func (w *Writer) Pending() int64 { return int64(len(w.buf)) + w.size }

// grab takes a buffer for the first reply after a flush, so that idle
// connections hold none.
func (w *Writer) grab() {
	if w.buf == nil {
		w.lent = bufPool.Get().(*[]byte)
		w.buf = (*w.lent)[:0]
	}
}

// Simple appends a status such as OK. CR and LF become spaces.
func (w *Writer) Simple(text string) { w.textLine('+', text) }

// Error appends an error, text being its code and message ("ERR no such
// thing"). CR and LF become spaces, so that any text stays one line.
func (w *Writer) Error(text string) { w.textLine('-', text) }

// ErrorExact appends an error line that takes exactly total bytes on the wire
// (at least 4), for clients that read replies by their expected length: text
// is cut, or filled up with dots.
func (w *Writer) ErrorExact(text string, total int) {
	n := max(1, total-3)
	if len(text) < n {
		text += strings.Repeat(".", n-len(text))
	}
	w.textLine('-', text[:n])
}

func (w *Writer) textLine(kind byte, text string) {
	w.grab()
	w.buf = append(w.buf, kind)
	at := len(w.buf)
	w.buf = append(w.buf, text...)
	for i := at; i < len(w.buf); i++ {
		if w.buf[i] == '\r' || w.buf[i] == '\n' {
			w.buf[i] = ' '
		}
	}
	w.CRLF()
}

// Int appends an integer.
func (w *Writer) Int(n int64) { w.header(':', n) }

// Bulk appends a copy of p as a bulk string.
func (w *Writer) Bulk(p []byte) {
	w.header('$', int64(len(p)))
	w.buf = append(w.buf, p...)
	w.CRLF()
}

// BulkString appends s as a bulk string.
func (w *Writer) BulkString(s string) {
	w.header('$', int64(len(s)))
	w.buf = append(w.buf, s...)
	w.CRLF()
}

// BulkRef appends p as a bulk string without a copy: p is read by the next
// Flush and must stay as it is until that returns.
func (w *Writer) BulkRef(p []byte) {
	w.header('$', int64(len(p)))
	w.Ref(p)
	w.CRLF()
}

// Ref appends p itself, without a copy, as part of a bulk string whose header
// BulkHeader appended; p is borrowed as by BulkRef.
func (w *Writer) Ref(p []byte) {
	if len(p) == 0 {
		return
	}
	w.grab()
	w.refs = append(w.refs, ref{at: len(w.buf), p: p})
	w.size += int64(len(p))
}

// BulkHeader appends the header of a bulk string of n bytes. The caller
// flushes, sends the n bytes itself (sendfile), and appends CRLF.
func (w *Writer) BulkHeader(n int64) { w.header('$', n) }

// CRLF appends the end of a bulk string.
func (w *Writer) CRLF() {
	w.grab()
	w.buf = append(w.buf, '\r', '\n')
}

// Text appends a key and its text, as one pair of a Map.
func (w *Writer) Text(key, value string) {
	w.BulkString(key)
	w.BulkString(value)
}

// Number appends a key and its number, as one pair of a Map.
func (w *Writer) Number(key string, value int64) {
	w.BulkString(key)
	w.Int(value)
}

// JSON appends v as a bulk string; an error where it can not be marshalled.
func (w *Writer) JSON(v any) {
	p, err := json.Marshal(v)
	if err != nil {
		w.Error("ERR " + err.Error())
		return
	}
	w.Bulk(p)
}

// Bit appends 1 for true, 0 for false, under either protocol.
func (w *Writer) Bit(is bool) {
	if is {
		w.Int(1)
		return
	}
	w.Int(0)
}

// Nulls appends the absence of n values.
func (w *Writer) Nulls(n int) {
	for range n {
		w.Null()
	}
}

// Null appends the absence of a value.
func (w *Writer) Null() {
	w.grab()
	if w.proto == 3 {
		w.buf = append(w.buf, "_\r\n"...)
		return
	}
	w.buf = append(w.buf, "$-1\r\n"...)
}

// Array appends the header of n values that the caller appends next.
func (w *Writer) Array(n int) { w.header('*', int64(n)) }

// Map appends the header of n pairs that the caller appends next, key and
// value in turn.
func (w *Writer) Map(n int) {
	if w.proto == 3 {
		w.header('%', int64(n))
		return
	}
	w.header('*', 2*int64(n))
}

// Bool appends a truth value; an integer in RESP2.
func (w *Writer) Bool(b bool) {
	n := int64(0)
	if b {
		n = 1
	}
	if w.proto != 3 {
		w.Int(n)
		return
	}
	w.grab()
	w.buf = append(w.buf, '#', "ft"[n], '\r', '\n')
}

// Double appends a number; a bulk string in RESP2.
func (w *Writer) Double(f float64) {
	var a [32]byte
	var p []byte
	switch {
	case math.IsNaN(f):
		p = append(a[:0], "nan"...)
	case math.IsInf(f, 1):
		p = append(a[:0], "inf"...)
	case math.IsInf(f, -1):
		p = append(a[:0], "-inf"...)
	default:
		p = strconv.AppendFloat(a[:0], f, 'g', 17, 64)
		if q := strconv.AppendFloat(a[:0], f, 'g', -1, 64); len(q) < len(p) {
			p = q
		}
	}
	if w.proto != 3 {
		w.Bulk(p)
		return
	}
	w.grab()
	w.buf = append(append(append(w.buf, ','), p...), '\r', '\n')
}

// Verbatim appends text for people, of a three-letter format such as "txt"; a
// bulk string in RESP2.
func (w *Writer) Verbatim(format, text string) {
	if w.proto != 3 || len(format) != 3 {
		w.BulkString(text)
		return
	}
	w.header('=', int64(len(text)+4))
	w.buf = append(append(w.buf, format...), ':')
	w.buf = append(w.buf, text...)
	w.CRLF()
}

func (w *Writer) header(kind byte, n int64) {
	w.grab()
	w.buf = append(w.buf, kind)
	w.buf = strconv.AppendInt(w.buf, n, 10)
	w.CRLF()
}

// VectorWriter is a destination that writes several buffers, in order, as one.
type VectorWriter interface {
	Writev(bufs [][]byte) error
}

// Flush writes everything that was appended, borrowed values from where they
// are: with one Writev where dst has it, with one writev where it is a net
// package's connection itself (a wrapper hides that). Whatever it returns, nothing is pending afterwards and
// borrowed values are free again.
func (w *Writer) Flush(dst io.Writer) error {
	if w.Pending() == 0 {
		return nil
	}
	var err error
	if len(w.refs) == 0 {
		_, err = dst.Write(w.buf)
	} else {
		at := 0
		for _, r := range w.refs {
			w.vec = append(w.vec, w.buf[at:r.at], r.p)
			at = r.at
		}
		w.vec = append(w.vec, w.buf[at:])
		if v, ok := dst.(VectorWriter); ok {
			err = v.Writev(w.vec)
		} else {
			w.out = w.vec
			_, err = w.out.WriteTo(dst)
		}
	}
	w.Discard()
	return err
}

// Discard forgets everything that was appended.
func (w *Writer) Discard() {
	clear(w.refs)
	clear(w.vec)
	w.refs, w.vec, w.out, w.size = w.refs[:0], w.vec[:0], nil, 0
	if w.lent != nil && cap(w.buf) <= keepBuf {
		*w.lent = w.buf
		bufPool.Put(w.lent)
	}
	w.buf, w.lent = nil, nil
}
