package server

import (
	"fmt"
	"strconv"
	"strings"

	"cascadekv/internal/args"
	"cascadekv/internal/netio"
	"cascadekv/internal/region"
	"cascadekv/internal/transfer"
)

// cmdCascadeRegion attaches and detaches regions.
func cmdCascadeRegion(c *conn, words [][]byte) {
	n := len(words)
	notify := n > 2 && strings.EqualFold(string(words[n-1]), "NOTIFY")
	if notify {
		n--
	}
	switch what := strings.ToUpper(string(words[1])); {
	case what == "FD" && n == 2:
		c.attach(notify, nil, (*transfer.Client).Attach)
	case what == "PATH" && n == 3:
		path := string(words[2])
		c.attach(notify, &path, (*transfer.Client).Attach)
	case what == "RING" && (n == 3 || n == 4 && strings.EqualFold(string(words[3]), "WRITE")):
		bytes, _ := strconv.ParseInt(string(words[2]), 10, 64) // what is no number is no size
		c.attach(notify, nil, func(x *transfer.Client, fd, event int) (int64, error) { return x.AttachRing(fd, event, bytes, n == 4) })
	case what == "DETACH" && len(words) == 3:
		c.detach(words[2])
	default:
		c.wr.Error(args.Syntax)
	}
}

// attach attaches the file at path, or what the descriptor that came along is for if
// there is no path.
func (c *conn) attach(notify bool, path *string, attach func(x *transfer.Client, fd, event int) (int64, error)) {
	fd, event, err := c.regionFiles(notify, path)
	var number int64
	if err == nil {
		if c.transfers == nil {
			c.transfers = c.srv.jobs.NewClient()
		}
		number, err = attach(c.transfers, fd, event)
	}
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	c.wr.Int(number)
}

// regionFiles returns the descriptors of a region and of its eventfd, -1 when
// none is wanted.
func (c *conn) regionFiles(notify bool, path *string) (fd, event int, err error) {
	fd, event = -1, -1
	want := 0
	if path == nil {
		want++
	}
	if notify {
		want++
	}
	came, ok := c.sock.TakeDescriptors(want)
	if !ok {
		return -1, -1, fmt.Errorf("%d descriptors should come with the first byte of this command (SCM_RIGHTS)", want)
	}
	if notify {
		event = came[want-1]
	}
	if path == nil {
		fd = came[0]
	} else {
		fd, err = region.Open(*path)
	}
	if err == nil && notify {
		err = region.CheckEventfd(event)
	}
	if err != nil {
		transfer.CloseAll(fd, event)
		return -1, -1, err
	}
	return fd, event, nil
}

// detach gives a region back when no job uses it any more.
func (c *conn) detach(number []byte) {
	n, r := c.region(number)
	if r == nil {
		return
	}
	c.transfers.Remove(n) // of no use to commands from here on
	c.awaitJobs(nil, nil, func() bool { return !c.transfers.InUse(r) })
	if err := c.transfers.GiveBack(r); err != nil {
		c.srv.log.Error("region is not given back", "conn", c.id, "err", err)
	}
	c.wr.Simple("OK")
}

// region returns a region of the connection; nil after it answered that there
// is no such region.
func (c *conn) region(number []byte) (n int64, r *transfer.Region) {
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err == nil && c.transfers != nil {
		r = c.transfers.Region(n)
	}
	if r == nil {
		c.wr.Error(fmt.Sprintf("ERR this connection has no region %.20q", number))
	}
	return n, r
}

// endTransfers cancels the connection's jobs, and gives its regions back.
func (c *conn) endTransfers() {
	if c.transfers == nil {
		return
	}
	if err := c.transfers.Close(); err != nil {
		c.srv.log.Error("region is not given back", "conn", c.id, "err", err)
	}
}

// replyFile replies with the size of a file, and its descriptor.
func (c *conn) replyFile(fd int, size int64) {
	if c.flush() != nil {
		c.quit = true
		return
	}
	c.wr.Array(1)
	c.wr.Int(size)
	if c.wr.Flush(netio.WithDescriptor{Conn: c.sock, Send: fd}) != nil {
		c.quit = true
	}
}
