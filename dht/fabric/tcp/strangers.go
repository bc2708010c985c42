package tcp

import (
	"errors"
	"fmt"
	"net"

	"cascadekv/dht/fabric"
)

// StreamError is the error of a stream that another rank, or a stranger, opened
// here.
type StreamError struct {
	Remote net.Addr
	From   fabric.Rank // as the opener's greeting has it
	Proved bool        // the opener has the secret, so that From may be believed
	Err    error
}

// Error names the rank only if it proved to be of the job.
func (e *StreamError) Error() string {
	if e.Proved {
		return fmt.Sprintf("tcp: stream from %v (%v): %v", e.Remote, e.From, e.Err)
	}
	return fmt.Sprintf("tcp: stream from %v, who proved nothing: %v", e.Remote, e.Err)
}

// Unwrap returns Err.
func (e *StreamError) Unwrap() error { return e.Err }

// errDropped ends a handshake that was under way for longest when too many were.
var errDropped = errors.New("dropped to make room: too many connections that proved nothing are open")
