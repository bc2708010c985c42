package resp

import (
	"fmt"
	"io"
	"sync"
)

// Receiver takes the bytes of one argument, in order, into memory of its own.
type Receiver interface {
	// Receive takes the bytes of head, which came already and die with the
	// call, and then rest more, which it reads from where the Reader reads: no
	// more and no fewer. An error is one of the stream, which goes on no more.
	Receive(head []byte, rest int64) error
}

// Sink decides where the arguments of a command go.
type Sink interface {
	// Bulk is asked for every argument from the third on, before its bytes are
	// read: args are the arguments that came before (nil where a Receiver took
	// them; they die with the call), size is the number of bytes to come. A
	// nil Receiver leaves the argument to the Reader. An error drops this
	// argument and those that follow, and becomes Command.Err.
	Bulk(args [][]byte, size int64) (Receiver, error)
}

// Command is one command as it was received.
type Command struct {
	Args   [][]byte // without those that were dropped; nil where a Receiver took the bytes
	Sizes  []int64  // bytes of each of Args
	Inline bool     // sent as a line
	Err    error    // why arguments were dropped; the stream is in sync
}

// argOverhead is what an argument costs beside its bytes: its place in Args
// and Sizes.
const argOverhead = 32

// Reader parses the commands of one connection. It is used by one goroutine.
// It keeps 16 KiB per connection, and more only while a command with many
// small arguments is being handled.
type Reader struct {
	in     input
	hold   []byte // bytes of held arguments; never nil while one is held. Its capacity is what Room gave
	whole  []byte // the memory that hold is the beginning of
	held   int64  // what the current command's arguments cost, up to MaxHeld
	cmd    Command
	idle   bool // waits for the first byte of a command
	broken error

	limits Limits
	room   Room  // nil: none is asked
	taken  int64 // of room, by hold
}

// Limits bound the commands of a client that is not trusted yet. A field that is
// zero stands for the bound of the protocol: MaxArgs, MaxHeld.
type Limits struct {
	Args  int64 // of one command
	Bytes int64 // of all arguments of one command
}

// Room bounds the memory that the commands of many connections take together
// while they arrive. Its methods are safe for concurrent use.
type Room interface {
	Take(n int64) bool // false: nothing was taken
	Give(n int64)
}

// NewReader returns a Reader of the commands that src delivers.
func NewReader(src io.Reader) *Reader {
	r := &Reader{}
	r.Reset(src)
	return r
}

// Reset makes the Reader read from src, from its start, keeping its memory.
func (r *Reader) Reset(src io.Reader) {
	r.in.init(src)
	r.broken = nil
	r.recycle()
}

// Limit bounds the commands that follow. A command beyond the limits is a
// *ProtocolError, in Redis's words for clients that have not authenticated.
func (r *Reader) Limit(l Limits) { r.limits = l }

// SetRoom has the Reader ask room for the memory of commands of more than
// 16 KiB. A command for which there is none is dropped: its Err matches ErrBusy.
func (r *Reader) SetRoom(room Room) { r.room = room }

// Close gives back what the Reader holds of its Room. No command follows.
func (r *Reader) Close() {
	if r.broken == nil {
		r.broken = ErrClosed
	}
	r.recycle()
}

// Buffered returns the number of bytes received that Next has not consumed: as
// long as it is not zero, replies can wait to be flushed together.
func (r *Reader) Buffered() int { return r.in.buffered() }

// Unread returns the bytes received that Next has not consumed. They die with
// the next call.
func (r *Reader) Unread() []byte { return r.in.buf[r.in.r:r.in.w] }

// Idle reports, to a source that is being read, whether nothing of a command has come
// yet: an error that it returns then loses nothing, and Reset goes on.
func (r *Reader) Idle() bool { return r.idle }

// Next returns the next command. It and its arguments are valid until the
// following call. sink may be nil, for none.
//
// Errors: io.EOF when the stream ends between commands, io.ErrUnexpectedEOF
// inside one, *ProtocolError for bytes that are no command, and what src
// returns. After any of them no command follows; whatever a Receiver of the
// unfinished command holds is the caller's to give back.
func (r *Reader) Next(sink Sink) (*Command, error) {
	if r.broken != nil {
		return nil, r.broken
	}
	r.recycle()
	if err := r.next(sink); err != nil {
		r.broken = err
		return nil, err
	}
	r.in.skipEmpty() // no command: replies must not wait for what comes behind it
	return &r.cmd, nil
}

// next parses until there is a command with at least one argument.
func (r *Reader) next(sink Sink) error {
	for len(r.cmd.Args) == 0 && r.cmd.Err == nil {
		if r.in.r == r.in.w {
			r.idle = true
			err := r.in.fill()
			r.idle = false
			if err != nil {
				return err
			}
		}
		var err error
		switch r.in.buf[r.in.r] {
		case '*':
			err = r.array(sink)
		case tlsHandshake:
			err = &ProtocolError{Reason: "this port does not speak TLS", Offset: r.in.offset(), Speaks: ErrTLS}
		default:
			err = r.inline(sink)
		}
		if err != nil {
			return unexpected(err)
		}
	}
	return nil
}

// tlsHandshake is the first byte of a TLS client, and of no command: what follows
// may have no end of line, and then its client waits for an answer.
const tlsHandshake = 0x16

// array parses one command in its usual form.
func (r *Reader) array(sink Sink) error {
	at := r.in.offset()
	n, err := r.header('*', MaxArgs, "too big mbulk count string", "invalid multibulk length")
	if err != nil {
		return err
	}
	if r.limits.Args > 0 && n > r.limits.Args {
		return &ProtocolError{Offset: at, Limit: true, Reason: "unauthenticated multibulk length"}
	}
	for range n {
		at := r.in.offset()
		size, err := r.header('$', MaxBulk, "too big bulk count string", "invalid bulk length")
		if err != nil {
			return err
		}
		if r.limits.Bytes > 0 && size > r.limits.Bytes-r.held {
			return &ProtocolError{Offset: at, Limit: true, Reason: "unauthenticated bulk length"}
		}
		if err := r.argument(sink, size); err != nil {
			return err
		}
		if err := r.in.crlf(); err != nil {
			return err
		}
	}
	return nil
}

// header parses a line of kind and a count. A command of minus one argument is
// an empty one, as for Redis.
func (r *Reader) header(kind byte, limit int64, tooLong, invalid string) (int64, error) {
	at := r.in.offset()
	p, crlf, err := r.in.line(tooLong)
	if err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, &ProtocolError{Offset: at, Reason: fmt.Sprintf("expected %q, got an empty line", kind)}
	}
	if p[0] != kind {
		return 0, &ProtocolError{Offset: at, Reason: fmt.Sprintf("expected %q, got %q", kind, p[0])}
	}
	if kind == '*' && string(p) == "*-1" && crlf {
		return 0, nil
	}
	n, ok := number(p[1:])
	if !ok || !crlf {
		return 0, &ProtocolError{Offset: at, Reason: invalid}
	}
	if n > limit {
		return 0, &ProtocolError{Offset: at, Reason: fmt.Sprintf("%s: %d, at most %d are taken", invalid, n, limit)}
	}
	return n, nil
}

// argument consumes the bytes of one argument.
func (r *Reader) argument(sink Sink, size int64) error {
	to := r.ask(sink, size)
	switch {
	case r.cmd.Err != nil:
		return r.in.discard(size)
	case to != nil:
		r.add(nil, size)
		return r.receive(to, size)
	}
	p, err := r.arrive(int(size))
	if r.cmd.Err == nil {
		r.add(p, size)
	}
	return err
}

// firstRoom is the memory that an argument gets before a byte of it has come.
const firstRoom = 64 << 10

// arrive receives an argument of n bytes into held memory, which grows as they
// come: a false size costs little. Without Room for it the argument is dropped.
func (r *Reader) arrive(n int) ([]byte, error) {
	p, ok := r.place(min(n, firstRoom))
	for got := 0; ok; {
		if err := r.in.full(p[got:]); err != nil || len(p) == n {
			return p, err
		}
		got = len(p)
		p, ok = r.grow(p, min(n, 4*got))
	}
	r.cmd.Err = ErrBusy
	return nil, r.in.discard(int64(n - len(p)))
}

// grow returns p with n bytes, those after its own undefined. p is what place
// returned last. On false p is returned as it was.
func (r *Reader) grow(p []byte, n int) ([]byte, bool) {
	if at := len(r.hold) - len(p); r.widen(at + n) {
		r.hold = r.hold[:at+n]
		return r.hold[at : at+n : at+n], true
	}
	q, ok := r.place(n)
	if !ok {
		return p, false
	}
	copy(q, p)
	return q, true
}

// widen gives hold a capacity of n bytes where it lies, if its memory has as
// many and there is Room for them.
func (r *Reader) widen(n int) bool {
	if n <= cap(r.hold) {
		return true
	}
	to := min(cap(r.whole), max(n, cap(r.hold)+firstRoom))
	if n > to || !r.take(int64(to-cap(r.hold))) {
		return false
	}
	r.hold = r.whole[:len(r.hold):to]
	return true
}

// ask decides where the next argument goes: to the Receiver it returns, to
// held memory when that is nil, or nowhere when the command has an Err.
func (r *Reader) ask(sink Sink, size int64) (to Receiver) {
	if r.cmd.Err != nil {
		return nil
	}
	if sink != nil && len(r.cmd.Args) >= 2 {
		if to, r.cmd.Err = sink.Bulk(r.cmd.Args, size); r.cmd.Err != nil {
			return nil
		}
	}
	cost := int64(argOverhead)
	if to == nil {
		cost += size
	}
	if r.held+cost > MaxHeld {
		r.cmd.Err = fmt.Errorf("%w: argument %d has %d bytes", ErrArgTooLarge, len(r.cmd.Args), size)
		return nil
	}
	r.held += cost
	return to
}

// receive has a Receiver take the next size bytes.
func (r *Reader) receive(to Receiver, size int64) error {
	head := r.in.peek(size)
	r.in.r += len(head)
	rest := size - int64(len(head))
	r.in.base += rest
	return to.Receive(head, rest)
}

func (r *Reader) add(p []byte, size int64) {
	r.cmd.Args = append(r.cmd.Args, p)
	r.cmd.Sizes = append(r.cmd.Sizes, size)
}

// place returns n bytes of held memory; false when there is no Room for them.
// Arguments held before stay where they are when hold is replaced by a larger
// piece.
func (r *Reader) place(n int) ([]byte, bool) {
	if r.hold == nil || !r.widen(len(r.hold)+n) {
		want := max(n, min(4*cap(r.hold), MaxHeld), 512)
		if !r.take(int64(want)) {
			return nil, false
		}
		r.whole = newHold(want)
		r.hold = r.whole[:0:want]
	}
	at := len(r.hold)
	r.hold = r.hold[:at+n]
	return r.hold[at : at+n : at+n], true
}

// take asks Room for n bytes more, unless the hold is one that is kept.
func (r *Reader) take(n int64) bool {
	if r.room == nil || r.taken == 0 && n <= keepHeld {
		return true
	}
	if !r.room.Take(n) {
		return false
	}
	r.taken += n
	return true
}

const (
	keepHeld = 16 << 10 // bytes of arguments that a connection keeps room for
	keepArgs = 1 << 10  // arguments likewise
)

// largeHolds is memory of more than keepHeld for commands with many arguments,
// which come often from few connections.
var largeHolds sync.Pool

// newHold returns memory for n bytes of arguments at least.
func newHold(n int) []byte {
	if n > keepHeld {
		if p, _ := largeHolds.Get().(*[]byte); p != nil && cap(*p) >= n {
			return (*p)[:0]
		}
	}
	return make([]byte, 0, n)
}

// recycle forgets the last command, and gives up the memory of an unusually
// large one.
func (r *Reader) recycle() {
	if r.taken > 0 {
		r.room.Give(r.taken)
		r.taken = 0
	}
	if cap(r.whole) > keepHeld {
		hold := r.whole[:0]
		largeHolds.Put(&hold)
		r.hold, r.whole = nil, nil
	}
	if cap(r.cmd.Args) > keepArgs {
		r.cmd.Args, r.cmd.Sizes = nil, nil
	}
	clear(r.cmd.Args)
	r.hold, r.held = r.hold[:0], 0
	r.cmd = Command{Args: r.cmd.Args[:0], Sizes: r.cmd.Sizes[:0]}
}
