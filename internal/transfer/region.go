package transfer

import (
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/direct"
	"cascadekv/internal/region"
)

// MaxRegions bounds the regions of one connection.
const MaxRegions = 64

// Region is memory of a client that blocks are copied out of and into.
type Region struct {
	*region.Region
	fd     int          // of the file: a program that takes this one's place maps it again
	notify int          // eventfd that counts finished jobs, -1: none
	ring   *direct.Ring // of which this is the memory; nil: none
	part   ringPart
	cost   region.Cost
	users  int // jobs that are not finished; guarded by the pool's mutex
}

// ringPart is what a ring has of what rings share.
type ringPart struct {
	held    atomic.Int64 // bytes of blocks that are held on the disks for its loads
	waiting atomic.Int64 // bytes of its stores whose event has not come
}

// Attach makes a file the client's next region, and returns its number. It takes
// both descriptors over: that of the file, and of an eventfd or -1. The error matches
// region.ErrBudget when regions would cost too much.
func (x *Client) Attach(fd, notify int) (number int64, err error) {
	size, err := region.SizeOf(fd)
	if err != nil {
		CloseAll(fd, notify)
		return 0, err
	}
	cost := region.CostOf(size, x.pool.Budget.memory, 1+min(1, notify+1))
	return x.add(cost, fd, notify, func() (*Region, error) { return x.pool.attach(fd, notify, size) })
}

// add makes what attach returns the client's next region, if there is a budget for it. attach takes both descriptors over, and so does add.
func (x *Client) add(cost region.Cost, fd, notify int, attach func() (*Region, error)) (number int64, err error) {
	if len(x.regions) >= MaxRegions {
		err = fmt.Errorf("this connection has %d regions; detach one", MaxRegions)
	} else {
		err = x.pool.Budget.Take(x.cost, cost)
	}
	if err != nil {
		CloseAll(fd, notify)
		return 0, err
	}
	r, err := attach()
	if err != nil {
		x.pool.Budget.Give(cost)
		return 0, err
	}
	r.cost = cost
	x.last++
	x.put(x.last, r)
	return x.last, nil
}

// CloseAll closes descriptors; -1 is none.
func CloseAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// attach is Attach of size bytes of a file (0: all), uncounted.
func (p *Pool) attach(fd, event int, size int64) (*Region, error) {
	if err := p.refuseOwn(fd); err != nil {
		CloseAll(fd, event)
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
		CloseAll(event)
		return nil, err
	}
	return &Region{Region: r, fd: kept, notify: event}, nil
}

// ErrOwnFile means that a client offers a file of a rank, this or another one, as a
// region.
var ErrOwnFile = errors.New("this file is a rank's own and can be no region: attach memory of the client's")

// OwnMagics begin the files that ranks keep (docs/format.md): arenas, segments,
// index files, shared indexes with their rings and holds, and handovers.
var OwnMagics = []string{"CASCSHM1", "CASCSEG\n", "CASCIDX\n", "CASCIDX1", "CASCTCH1", "CASCHLD1", "CASCHND1"}

// refuseOwn returns ErrOwnFile for a descriptor of this rank's arena, however it was
// opened, and of any file that begins as those of ranks do: a LOAD would write
// over the blocks in it.
func (p *Pool) refuseOwn(fd int) error {
	var is, own unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return fmt.Errorf("descriptor of a region: %w", err)
	}
	if a, ok := p.store.Arena(); ok && unix.Fstat(a.FD, &own) == nil && own.Dev == is.Dev && own.Ino == is.Ino {
		return ErrOwnFile
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil // what else it can not be is checked later, and reading may wait
	}
	var magic [8]byte
	if n, _ := unix.Pread(fd, magic[:], 0); n == len(magic) {
		for _, m := range OwnMagics {
			if m == string(magic[:]) {
				return ErrOwnFile
			}
		}
	}
	return nil
}
