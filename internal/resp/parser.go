package resp

import "bytes"

// Parser parses commands that have come as a whole. It is used by one goroutine; the zero
// value is ready.
type Parser struct {
	from bytes.Reader
	rd   Reader
	cmd  Command
}

// Parse returns the one command that p is, until the next call; nil where p is less, more,
// or anything else. Its arguments may be parts of p.
func (x *Parser) Parse(p []byte) *Command {
	if x.plain(p) {
		return &x.cmd
	}
	x.from.Reset(p)
	x.rd.Reset(&x.from)
	cmd, err := x.rd.Next(nil)
	if err != nil || cmd.Err != nil || x.rd.Buffered()+x.from.Len() > 0 {
		return nil
	}
	return cmd
}

// plain parses an array of bulk strings in place, and reports whether p is one; if not, p may
// still be a command.
func (x *Parser) plain(p []byte) bool {
	x.cmd = Command{Args: x.cmd.Args[:0], Sizes: x.cmd.Sizes[:0]}
	n, p, ok := count('*', p)
	for ; ok && n > 0; n-- {
		var size int
		if size, p, ok = count('$', p); !ok || len(p)-2 < size || p[size] != '\r' || p[size+1] != '\n' {
			return false
		}
		x.cmd.Args, x.cmd.Sizes = append(x.cmd.Args, p[:size:size]), append(x.cmd.Sizes, int64(size))
		p = p[size+2:]
	}
	return ok && len(p) == 0 && len(x.cmd.Args) > 0
}

// mostDigits are those of the counts that count takes.
const mostDigits = 6

// count takes a line of kind and a count off p.
func count(kind byte, p []byte) (n int, rest []byte, ok bool) {
	if len(p) == 0 || p[0] != kind {
		return 0, p, false
	}
	for i, c := range p[1:] {
		switch {
		case c >= '0' && c <= '9' && i < mostDigits:
			n = 10*n + int(c-'0')
		case c == '\r' && i > 0 && len(p) > i+2 && p[i+2] == '\n':
			return n, p[i+3:], true
		default:
			return 0, p, false
		}
	}
	return 0, p, false
}
