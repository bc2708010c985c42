package resp

import (
	"errors"
	"fmt"
	"io"
)

// Bounds of the protocol, those of Redis where it has them.
const (
	MaxArgs   = 1 << 20   // arguments of one command
	MaxBulk   = 512 << 20 // bytes of one bulk string
	MaxHeld   = 4 << 20   // bytes of all held arguments of one command, their bookkeeping included
	MaxInline = 16 << 10  // bytes of one inline command or header line
)

// Errors of this package. Test with errors.Is.
var (
	// ErrProtocol matches every ProtocolError: the peer broke the protocol,
	// so the stream cannot be followed further and must be closed.
	ErrProtocol = errors.New("resp: protocol error")

	// ErrHTTP and ErrTLS match a ProtocolError whose peer speaks another protocol.
	ErrHTTP = errors.New("resp: peer speaks HTTP")
	ErrTLS  = errors.New("resp: peer speaks TLS")

	// ErrArgTooLarge is Command.Err when arguments that no Sink took exceed
	// MaxHeld; the stream stays in sync.
	ErrArgTooLarge = errors.New("resp: arguments too large: all but values must fit 4 MiB")

	// ErrBusy is Command.Err when the commands of all connections take what
	// Room gives them; the stream stays in sync.
	ErrBusy = errors.New("resp: too many large commands arrive at once; try again")

	// ErrServer matches every ServerError.
	ErrServer = errors.New("resp: server answered with an error")

	// ErrNull is returned where a value was asked for and there is none.
	ErrNull = errors.New("resp: null reply")

	// ErrShortBuffer means that a value is larger than the caller's buffer.
	// The stream stays in sync.
	ErrShortBuffer = errors.New("resp: value is larger than the buffer")

	// ErrClosed is returned by a Client or Reader after Close.
	ErrClosed = errors.New("resp: client is closed")
)

// ProtocolError describes what was wrong with the peer's bytes and where.
type ProtocolError struct {
	Reason string // one line, in Redis's words where Redis has words for it
	Offset int64  // bytes of the stream before the item that is wrong
	Speaks error  // ErrHTTP or ErrTLS where the bytes are of that protocol, else nil
	Limit  bool   // the command is beyond what Reader.Limit allows
}

// Error names the reason and the place.
func (e *ProtocolError) Error() string {
	return fmt.Sprintf("Protocol error: %s at byte %d", e.Reason, e.Offset)
}

// Is makes every ProtocolError match ErrProtocol, and the protocol of its bytes.
func (e *ProtocolError) Is(target error) bool {
	return target == ErrProtocol || e.Speaks != nil && target == e.Speaks
}

// ServerError is an error reply: the server refused a command, and the
// connection stays usable.
type ServerError struct {
	Text string // the whole line, such as "WRONGTYPE Operation against …"
}

// Error returns the server's words.
func (e *ServerError) Error() string { return "server: " + e.Text }

// Is makes every ServerError match ErrServer.
func (e *ServerError) Is(target error) bool { return target == ErrServer }

// Code is the first word of the text, such as ERR, NOAUTH or OOM.
func (e *ServerError) Code() string {
	for i := 0; i < len(e.Text); i++ {
		if e.Text[i] == ' ' {
			return e.Text[:i]
		}
	}
	return e.Text
}

// unexpected turns an end of stream inside an item into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
