package plan

import (
	"io"

	"cascadekv/internal/trace"
)

// list is a trace in memory.
type list struct{ requests []trace.Request }

func (l *list) Next(r *trace.Request) error {
	if len(l.requests) == 0 {
		return io.EOF
	}
	*r, l.requests = l.requests[0], l.requests[1:]
	return nil
}
