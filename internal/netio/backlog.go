package netio

import (
	"errors"
	"time"
)

// Backlog is a Conn to which short answers are written as far as it takes them.
// The rest is kept, in order, and goes out while the client's next command is
// waited for: a client may send all of a long pipeline before it reads, and a unix
// socket has room for some hundred answers only, however short they are.
type Backlog struct{ *Conn }

// Write implements io.Writer. It keeps a copy of what it keeps of p.
func (b Backlog) Write(p []byte) (int, error) {
	b.countSent(len(p))
	if len(b.backlog) == 0 {
		n, err := b.sendNow(p)
		if err != nil && !errors.Is(err, ErrStalled) {
			return n, err
		}
		b.keep(p[n:])
		return len(p), nil
	}
	b.backlog = append(b.backlog, p...)
	return len(p), b.sendBacklog()
}

// Writev writes all buffers in order, as Write does.
func (b Backlog) Writev(bufs [][]byte) error {
	sent := 0
	if total := b.gather(bufs, 0); total > 0 && len(b.backlog) == 0 {
		b.countSent(total)
		var err error
		if sent, err = b.sendVecNow(); err != nil && !errors.Is(err, ErrStalled) {
			return err
		}
	}
	for _, p := range bufs {
		n := min(sent, len(p))
		sent -= n
		b.keep(p[n:])
	}
	return nil
}

// keep keeps a copy of what is not sent.
func (b Backlog) keep(p []byte) {
	if len(p) == 0 {
		return
	}
	if len(b.backlog) == 0 {
		b.stalledAt = time.Now().Add(StallDeadline)
	}
	b.backlog = append(b.backlog, p...)
}

// BacklogLen returns how many bytes of answers are kept.
func (c *Conn) BacklogLen() int { return len(c.backlog) }

// sendBacklog sends what there is room for.
func (c *Conn) sendBacklog() error {
	n, err := c.sendNow(c.backlog)
	if n > 0 {
		c.stalledAt = time.Now().Add(StallDeadline)
	}
	if c.backlog = c.backlog[n:]; len(c.backlog) == 0 {
		c.backlog = nil
	}
	if errors.Is(err, ErrStalled) && time.Now().Before(c.stalledAt) {
		return nil
	}
	return err
}

// FlushBacklog sends all that was kept, and waits for room as long as the client goes on
// reading.
func (c *Conn) FlushBacklog() error {
	for len(c.backlog) > 0 {
		if err := c.poller.awaitRoom(c, time.Until(c.stalledAt)); err != nil {
			return err
		}
		if err := c.sendBacklog(); err != nil {
			return err
		}
	}
	return nil
}
