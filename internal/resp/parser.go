package resp

import "bytes"

// Parser parses commands that have come as a whole. It is used by one goroutine; the zero
// value is ready.
type Parser struct {
	from bytes.Reader
	rd   Reader
}

// Parse returns the one command that p is, until the next call; nil where p is less, more,
// or anything else.
func (x *Parser) Parse(p []byte) *Command {
	x.from.Reset(p)
	x.rd.Reset(&x.from)
	cmd, err := x.rd.Next(nil)
	if err != nil || cmd.Err != nil || x.rd.Buffered()+x.from.Len() > 0 {
		return nil
	}
	return cmd
}
