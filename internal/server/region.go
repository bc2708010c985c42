package server

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/internal/region"
)

// maxRegions bounds the regions of one connection.
const maxRegions = 64

// attached is a region of a connection.
type attached struct {
	*region.Region
	fd     int // of the file: a program that takes this one's place maps it again
	notify int // eventfd, -1: none
	cost   region.Cost
	users  int // jobs that are not finished; guarded by the pool's mutex
}

// cmdCascadeRegion attaches and detaches regions.
func cmdCascadeRegion(c *conn, args [][]byte) {
	words := len(args)
	notify := words > 2 && strings.EqualFold(string(args[words-1]), "NOTIFY")
	if notify {
		words--
	}
	switch what := strings.ToUpper(string(args[1])); {
	case what == "FD" && words == 2:
		c.attach(notify, nil)
	case what == "PATH" && words == 3:
		path := string(args[2])
		c.attach(notify, &path)
	case what == "DETACH" && len(args) == 3:
		c.detach(args[2])
	default:
		c.wr.Error("ERR syntax error")
	}
}

// attach attaches the file at path, or the one whose descriptor came along if
// there is no path.
func (c *conn) attach(notify bool, path *string) {
	number, err := c.tryAttach(notify, path)
	if err != nil {
		c.wr.Error("ERR " + err.Error())
		return
	}
	c.wr.Int(number)
}

func (c *conn) tryAttach(notify bool, path *string) (int64, error) {
	if c.moves == nil {
		c.moves = newTransfers(c.srv.jobs)
	}
	if len(c.moves.regions) >= maxRegions {
		return 0, fmt.Errorf("this connection has %d regions; detach one", maxRegions)
	}
	fd, event, err := c.regionFiles(notify, path)
	if err != nil {
		return 0, err
	}
	size, err := region.SizeOf(fd)
	cost := region.CostOf(size, c.srv.regions.memory, 1+min(1, event+1))
	if err == nil {
		err = c.srv.regions.take(c.moves.cost, cost)
	}
	if err != nil {
		closeAll(fd, event)
		return 0, err
	}
	r, err := c.srv.attachRegion(fd, event, size)
	if err != nil {
		c.srv.regions.give(cost)
		return 0, err
	}
	r.cost = cost
	return c.moves.add(r), nil
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// attachRegion takes two descriptors over: that of a file, size bytes of which are
// the region (0: all), and of its eventfd or -1. On error they are closed.
func (s *Server) attachRegion(fd, event int, size int64) (*attached, error) {
	if err := s.refuseOwn(fd); err != nil {
		closeAll(fd, event)
		return nil, err
	}
	kept, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		err = fmt.Errorf("keep the descriptor of a region: %w", err)
	}
	var r *region.Region
	if err == nil {
		if r, err = region.AttachSize(fd, size); err != nil {
			_ = unix.Close(kept)
		}
	}
	if err != nil {
		if event >= 0 {
			_ = unix.Close(event)
		}
		return nil, err
	}
	return &attached{Region: r, fd: kept, notify: event}, nil
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
		err = checkEventfd(event)
	}
	if err != nil {
		closeAll(fd, event)
		return -1, -1, err
	}
	return fd, event, nil
}

var errNoEventfd = errors.New("the descriptor of NOTIFY is not an eventfd")

func checkEventfd(fd int) error {
	is, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fmt.Errorf("descriptor of NOTIFY: %w", err)
	}
	if is != "anon_inode:[eventfd]" {
		return errNoEventfd
	}
	return nil
}

// detach gives a region back when no job uses it any more.
func (c *conn) detach(number []byte) {
	n, r := c.region(number)
	if r == nil {
		return
	}
	delete(c.moves.regions, n) // of no use to commands from here on
	c.awaitJobs(nil, nil, func() bool { return r.users == 0 })
	if err := c.moves.giveBack(r); err != nil {
		c.srv.log.Error("region is not given back", "conn", c.id, "err", err)
	}
	c.wr.Simple("OK")
}

// region returns a region of the connection; nil after it answered that there
// is no such region.
func (c *conn) region(number []byte) (n int64, r *attached) {
	n, err := strconv.ParseInt(string(number), 10, 64)
	if err == nil && c.moves != nil {
		r = c.moves.regions[n]
	}
	if r == nil {
		c.wr.Error(fmt.Sprintf("ERR this connection has no region %.20q", number))
	}
	return n, r
}
