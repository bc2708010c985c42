package resp

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Client is one connection to a server. It is used by one goroutine. Answers
// come in the order of the commands: Do is Send, Flush and Receive in one, and
// between Sends and their Receives no Do may come.
//
// An error that matches ErrServer, ErrNull or ErrShortBuffer leaves the
// connection usable. Any other error breaks it: each later call returns the
// same error.
type Client struct {
	conn    net.Conn
	in      input
	out     Writer
	timeout time.Duration
	waiting int // commands sent and not answered
	broken  error
}

// Dial connects to a server; network is "unix" or "tcp". timeout bounds the
// connection and then every wait for the other side; zero means for ever. A
// server on this machine must be of the caller's own user, of root, or of a user
// in serverUIDs; else the error matches ErrForeignServer and nothing was sent.
func Dial(network, addr string, timeout time.Duration, serverUIDs ...int) (*Client, error) {
	conn, err := net.DialTimeout(network, addr, timeout)
	if err != nil {
		return nil, fmt.Errorf("resp: cannot connect: %w", err)
	}
	if err := CheckServer(conn, serverUIDs...); err != nil {
		_ = conn.Close() // nothing was sent; the refusal is what matters
		return nil, err
	}
	return NewClient(conn, timeout), nil
}

// NewClient returns a Client on conn, which it owns.
func NewClient(conn net.Conn, timeout time.Duration) *Client {
	c := &Client{conn: conn, timeout: timeout}
	c.in.init(conn)
	if timeout > 0 {
		c.in.wait = func() error { return conn.SetReadDeadline(time.Now().Add(timeout)) }
	}
	return c
}

// Close ends the connection. Calls after it return ErrClosed.
func (c *Client) Close() error {
	was := c.broken
	c.broken = ErrClosed
	c.out.Discard()
	if was != nil {
		return nil // closed when it broke
	}
	return c.conn.Close()
}

// Do sends a command and returns its answer. An error reply is a *ServerError.
func (c *Client) Do(args ...string) (Reply, error) {
	c.Send(args...)
	if err := c.Flush(); err != nil {
		return Reply{}, err
	}
	return c.Receive()
}

// Set stores value under key; options such as "PX", "1000" follow it. value is
// written from where it lies.
func (c *Client) Set(key string, value []byte, options ...string) error {
	c.sendHeader(3 + len(options))
	c.out.BulkString("SET")
	c.out.BulkString(key)
	c.out.BulkRef(value)
	for _, o := range options {
		c.out.BulkString(o)
	}
	if err := c.Flush(); err != nil {
		return err
	}
	return c.ReceiveOK()
}

// Get reads the value of key into dst and returns its size. ErrNull: there is
// none. ErrShortBuffer: it is larger than dst, of which nothing is used; the
// size is returned all the same.
func (c *Client) Get(key string, dst []byte) (int, error) {
	c.sendHeader(2)
	c.out.BulkString("GET")
	c.out.BulkString(key)
	if err := c.Flush(); err != nil {
		return 0, err
	}
	return c.ReceiveInto(dst)
}

// Send queues a command. Errors show at Flush.
func (c *Client) Send(args ...string) {
	c.sendHeader(len(args))
	for _, a := range args {
		c.out.BulkString(a)
	}
}

// SendValue queues a command with value as argument number at (SET's is 2),
// borrowed until Flush returns. at is between 1 and len(args).
func (c *Client) SendValue(at int, value []byte, args ...string) {
	c.sendHeader(len(args) + 1)
	for i, a := range args {
		if i == at {
			c.out.BulkRef(value)
		}
		c.out.BulkString(a)
	}
	if at >= len(args) {
		c.out.BulkRef(value)
	}
}

func (c *Client) sendHeader(n int) {
	c.out.Array(n)
	c.waiting++
}

// Flush writes the queued commands.
func (c *Client) Flush() error {
	if c.broken != nil {
		c.out.Discard()
		return c.broken
	}
	if c.timeout > 0 {
		// A large value may take longer than one answer may: allow for 32 MiB/s.
		slack := time.Duration(c.out.Pending()>>15) * time.Millisecond
		if err := c.conn.SetWriteDeadline(time.Now().Add(c.timeout + slack)); err != nil {
			return c.fail(err)
		}
	}
	if err := c.out.Flush(c.conn); err != nil {
		return c.fail(err)
	}
	return nil
}

// Receive returns the next answer. An error reply is a *ServerError.
func (c *Client) Receive() (Reply, error) {
	if err := c.expect(); err != nil {
		return Reply{}, err
	}
	left := maxElems
	r, err := c.in.reply(0, &left)
	if err != nil {
		return Reply{}, c.fail(err)
	}
	if r.Kind == KindError {
		return r, &ServerError{Text: string(r.Str)}
	}
	return r, nil
}

// ReceiveOK reads an answer that should be +OK. ErrNull: the server's
// condition (NX, XX) was not met.
func (c *Client) ReceiveOK() error {
	if err := c.expect(); err != nil {
		return err
	}
	kind, body, err := c.in.head()
	switch {
	case err != nil:
		return c.fail(err)
	case kind == '+' && string(body) == "OK":
		return nil
	case kind == '-':
		return &ServerError{Text: string(body)}
	case kind == '_' || kind == '$' && string(body) == "-1":
		return ErrNull
	}
	return c.fail(c.in.bad("expected OK, got " + strconv.Quote(string(kind)+string(body))))
}

// ReceiveInto reads an answer that is a value; as Get.
func (c *Client) ReceiveInto(dst []byte) (int, error) {
	if err := c.expect(); err != nil {
		return 0, err
	}
	n, err := c.in.value(dst)
	if err == nil || errors.Is(err, ErrServer) || errors.Is(err, ErrNull) || errors.Is(err, ErrShortBuffer) {
		return n, err
	}
	return 0, c.fail(err)
}

// Waiting returns the number of commands that are sent and not answered.
func (c *Client) Waiting() int { return c.waiting }

func (c *Client) expect() error {
	if c.broken != nil {
		return c.broken
	}
	if c.waiting == 0 {
		return errors.New("resp: receive without a command to answer")
	}
	c.waiting--
	return nil
}

// fail breaks the connection: after a lost byte no answer can be attributed.
func (c *Client) fail(err error) error {
	c.broken = fmt.Errorf("resp: connection to %s: %w", c.peer(), unexpected(err))
	c.out.Discard()
	_ = c.conn.Close() // the error that broke it is what the caller needs
	return c.broken
}

func (c *Client) peer() string {
	a := c.conn.RemoteAddr()
	if a == nil || a.String() == "" {
		return "server"
	}
	return a.String()
}
