package server

import (
	"strconv"
	"time"

	"cascadekv/internal/args"
	"cascadekv/internal/inject"
)

// maxWait bounds a wait of CASCADE.DONE.
const maxWait = 5 * time.Second

// awaitJobs waits until ready, for timeout (nil: for ever), or until connections are
// to rest (nil: it does not matter). If the client hangs up, all jobs of the
// connection are cancelled.
func (c *conn) awaitJobs(timeout <-chan time.Time, quiesce <-chan struct{}, ready func() bool) {
	if ready() {
		return
	}
	gone, err := c.sock.HangUp()
	if err != nil {
		c.transfers.CancelAll() // the server ends
	}
	for !ready() {
		select {
		case <-c.transfers.Ended():
		case <-gone:
			if c.sock.HungUp() {
				c.transfers.CancelAll()
				gone = nil
			}
		case <-timeout:
			return
		case <-quiesce:
			return
		}
	}
}

// cmdCascadeDone reports finished jobs.
func cmdCascadeDone(c *conn, words [][]byte) {
	wait := time.Duration(0)
	if len(words) == 2 {
		ms, err := strconv.ParseInt(string(words[1]), 10, 64)
		if err != nil || ms < 0 {
			c.wr.Error(args.Number)
			return
		}
		wait = time.Duration(min(ms, maxWait.Milliseconds())) * time.Millisecond
	}
	if c.transfers == nil {
		c.wr.Array(0)
		return
	}
	if wait > 0 {
		timer, end := time.NewTimer(wait), time.Now().Add(wait)
		defer timer.Stop()
		quiesce := c.srv.poller.QuiesceBegins()
		c.awaitJobs(timer.C, quiesce, c.transfers.CanCollect)
		if left := time.Until(end); isClosed(quiesce) && left > 0 && !c.transfers.CanCollect() {
			c.putBack("CASCADE.DONE", millis(left))
			return
		}
	}
	if c.transfers.CanCollect() && inject.Lost(inject.Completion) {
		c.quit = true
		return
	}
	done := c.transfers.Collect()
	c.wr.Array(len(done))
	for _, j := range done {
		c.wr.Array(2)
		c.wr.Int(j.Number)
		c.wr.Bulk(j.Status)
	}
}

// cmdCascadeCancel ends a job early.
func cmdCascadeCancel(c *conn, words [][]byte) {
	n, err := strconv.ParseInt(string(words[1]), 10, 64)
	if err != nil {
		c.wr.Error(args.Number)
		return
	}
	c.wr.Bit(c.transfers != nil && c.transfers.Cancel(n))
}
