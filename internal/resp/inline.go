package resp

import (
	"bytes"
	"slices"
)

// inline parses one command that was sent as a line of words, as a person
// types it into netcat.
func (r *Reader) inline(sink Sink) error {
	at := r.in.offset()
	line, _, err := r.in.line("too big inline request")
	if err != nil {
		return err
	}
	if looksLikeHTTP(line) {
		// A browser can be tricked into sending a form to a local port; its
		// body must not be taken for commands.
		return &ProtocolError{Reason: "this is not a web server", Offset: at, Speaks: ErrHTTP}
	}
	for {
		line = bytes.TrimLeft(line, " \t\r")
		if len(line) == 0 {
			r.cmd.Inline = len(r.cmd.Args) > 0
			return nil
		}
		if r.limits.Args > 0 && int64(len(r.cmd.Args)) == r.limits.Args {
			return &ProtocolError{Limit: true, Reason: "unauthenticated multibulk length", Offset: at}
		}
		word, n, ok := nextWord(line)
		if !ok {
			return &ProtocolError{Reason: "unbalanced quotes in request", Offset: at}
		}
		if err := r.word(sink, word); err != nil {
			return err
		}
		line = line[n:]
	}
}

// word adds an argument whose bytes are at hand.
func (r *Reader) word(sink Sink, p []byte) error {
	size := int64(len(p))
	to := r.ask(sink, size)
	if r.cmd.Err != nil {
		return nil
	}
	if to == nil {
		q, ok := r.place(len(p))
		if !ok {
			r.cmd.Err = ErrBusy
			return nil
		}
		copy(q, p)
		r.add(q, size)
		return nil
	}
	r.add(nil, size)
	return to.Receive(p, 0)
}

// httpMethods are the first words of requests. With none of them is a line of
// three words that ends in a version of HTTP a command.
var httpMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "PATCH", "PRI"}

// looksLikeHTTP recognizes a request line, and a header that a request cannot do
// without.
func looksLikeHTTP(line []byte) bool {
	if method, rest, ok := bytes.Cut(line, []byte(" ")); ok {
		at := bytes.LastIndexByte(rest, ' ')
		if at >= 0 && bytes.HasPrefix(rest[at+1:], []byte("HTTP/")) && slices.Contains(httpMethods, string(method)) {
			return true
		}
	}
	for _, p := range []string{"post ", "host:"} {
		if len(line) >= len(p) && bytes.EqualFold(line[:len(p)], []byte(p)) {
			return true
		}
	}
	return false
}

// nextWord takes one word off a line that starts with one: plain, "with
// escapes" or 'as it is'. It unquotes in place, and returns the word and how
// many bytes of the line it took; false when a quote is not closed, or is
// closed inside a word.
func nextWord(line []byte) (word []byte, n int, ok bool) {
	q := line[0]
	if q != '"' && q != '\'' {
		n = bytes.IndexAny(line, " \t\r\"'")
		if n < 0 {
			n = len(line)
		}
		return line[:n], n, n == len(line) || line[n] != '"' && line[n] != '\''
	}
	word = line[:0]
	for i := 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == q:
			end := i + 1
			return word, end, end == len(line) || line[end] == ' ' || line[end] == '\t' || line[end] == '\r'
		case c == '\\' && q == '"':
			b, took := unescape(line[i+1:])
			if took == 0 {
				return nil, 0, false
			}
			word = append(word, b)
			i += took
		case c == '\\' && i+1 < len(line) && line[i+1] == '\'':
			word = append(word, '\'')
			i++
		default:
			word = append(word, c)
		}
	}
	return nil, 0, false
}

// unescape returns the byte that follows a backslash and how many bytes spell
// it; 0 at the end of the line.
func unescape(p []byte) (b byte, took int) {
	if len(p) == 0 {
		return 0, 0
	}
	if p[0] == 'x' && len(p) >= 3 {
		hi, lo := hexDigit(p[1]), hexDigit(p[2])
		if hi >= 0 && lo >= 0 {
			return byte(hi<<4 | lo), 3
		}
	}
	switch p[0] {
	case 'n':
		return '\n', 1
	case 'r':
		return '\r', 1
	case 't':
		return '\t', 1
	case 'b':
		return '\b', 1
	case 'a':
		return '\a', 1
	}
	return p[0], 1
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
