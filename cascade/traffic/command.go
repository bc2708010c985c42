package traffic

import (
	"encoding/binary"
	"errors"
	"time"

	"cascadekv/cascade/events"
)

// Kind is what a command does with its keys.
type Kind uint8

const (
	Looked Kind = iota + 1 // asked whether they are stored
	Got                    // read them
	Put                    // stored them
)

// Sender is who sent a command.
type Sender struct {
	Engine uint64 // which process, as far as is known: several connections may have one
	Conn   uint64 // which connection
}

// Command is one command of a client. Its slice is not changed once the command is in a log.
type Command struct {
	Kind    Kind
	Chained bool  // each key is the parent of the next; else that is likely at most
	At      int64 // when it came, in milliseconds since 1970
	Sender
	Parent    uint64 // fingerprint of the parent of the first key, 0: not known
	Namespace string
	Keys      []uint64 // fingerprints, in order
}

const (
	// kept and keysKept bound a log: 6 MiB of commands and 8 MiB of keys.
	kept     = 1 << 16
	keysKept = 1 << 20

	// Idle is how long after the last question a log is on.
	Idle = 15 * time.Second
)

// NewLog returns an empty log that gives no command a number below first.
func NewLog(first uint64) *events.Log[Command] {
	return events.New(events.Limits[Command]{
		Kept: kept, Most: keysKept, Cost: func(c *Command) int64 { return int64(len(c.Keys)) }, Idle: Idle,
	}, first)
}

// ErrCommand means bytes that are no command of a log.
var ErrCommand = errors.New("traffic: not a command of a log")

// headBytes are those of a command before its namespace.
const headBytes = 2 + 4*8 + 2

// Append appends c as docs/protocol.md has it. The namespace has less than 64 KiB.
func Append(b []byte, c *Command) []byte {
	b = append(b, byte(c.Kind), 0)
	if c.Chained {
		b[len(b)-1] = 1
	}
	for _, n := range []uint64{uint64(c.At), c.Engine, c.Conn, c.Parent} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.Namespace)))
	b = append(b, c.Namespace...)
	for _, k := range c.Keys {
		b = binary.LittleEndian.AppendUint64(b, k)
	}
	return b
}

// Parse reads what Append appended. The error is ErrCommand. b is not kept.
func Parse(b []byte) (c Command, err error) {
	if len(b) < headBytes {
		return c, ErrCommand
	}
	kind, flags, words := Kind(b[0]), b[1], b[2:]
	ns := int(binary.LittleEndian.Uint16(b[headBytes-2:]))
	keys := b[headBytes:]
	if kind < Looked || kind > Put || flags > 1 || len(keys) < ns || (len(keys)-ns)%8 != 0 {
		return c, ErrCommand
	}
	c = Command{Kind: kind, Chained: flags == 1, Namespace: string(keys[:ns])}
	c.At = int64(binary.LittleEndian.Uint64(words))
	for i, n := range []*uint64{&c.Engine, &c.Conn, &c.Parent} {
		*n = binary.LittleEndian.Uint64(words[8*(i+1):])
	}
	c.Keys = make([]uint64, 0, (len(keys)-ns)/8)
	for keys = keys[ns:]; len(keys) > 0; keys = keys[8:] {
		c.Keys = append(c.Keys, binary.LittleEndian.Uint64(keys))
	}
	return c, nil
}
