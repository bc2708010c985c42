package layout

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// delayCreate makes a file without objects, so that its layout can still be
// chosen. The flags mean nothing for files elsewhere.
const delayCreate = unix.O_NOCTTY | unix.O_ASYNC

// createFile makes a file that must not exist, opens it for reading and writing,
// and asks for the layout. The report has what was granted; on a file system
// without stripes its Striped is false and the file is like any other. When
// the layout is refused there is no file, and the error matches ErrRefused.
// The caller closes the file.
func createFile(path string, perm uint32, asked Layout) (*os.File, Report, error) {
	r := Report{Path: path, Asked: asked}
	if err := asked.Validate(); err != nil {
		return nil, r, err
	}
	fd, err := create(path, perm, &r)
	if err != nil {
		return nil, r, err
	}
	return os.NewFile(uintptr(fd), path), r, nil
}

const openFlags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW

// create makes the file and fills r. What it makes is removed when it fails.
//
// The descriptor that delayed the layout is closed before the file is opened
// again. Where a request is dropped (see Ignored) the file has no objects yet:
// they are made by the first ordinary open while no other is there, and until
// then a write fails with EBADF. It also rids the file of O_ASYNC, which fcntl
// does not take from a regular file.
func create(path string, perm uint32, r *Report) (int, error) {
	flags := openFlags | unix.O_CREAT | unix.O_EXCL
	if !r.Asked.IsZero() {
		flags |= delayCreate
	}
	fd, err := open(path, flags, perm)
	if err != nil {
		return -1, err
	}
	if !r.Asked.IsZero() {
		err = askFor(fd, r)
		unix.Close(fd) // nothing was written
		fd = -1
		if err == nil {
			fd, err = open(path, openFlags, 0)
		}
	}
	if err == nil {
		err = readBack(r)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		unix.Unlink(path) // Lustre leaves a file that it refused, empty and without objects
		return -1, err
	}
	return fd, nil
}

// componentFlags are the names that lfs prints, in its order.
var componentFlags = []struct {
	bits uint32
	name string
}{
	{flagInit, "init"}, {0x001, "stale"}, {0x006, "prefer"}, {0x002, "prefrd"}, {0x004, "prefwr"}, {0x008, "offline"}, {0x020, "nosync"},
	{flagExtension, "extension"}, {0x080, "parity"}, {0x100, "compress"}, {0x200, "partial"}, {0x400, "nocompr"},
}

// flagNames lists the component's flags as lfs does, "0" when there are none.
func (p Part) flagNames() string {
	if p.Flags == 0 {
		return "0"
	}
	var names []string
	rest := p.Flags
	for _, f := range componentFlags {
		if rest&f.bits == f.bits {
			names = append(names, f.name)
			rest &^= f.bits
		}
	}
	if rest != 0 {
		names = append(names, fmt.Sprintf("%#x", rest))
	}
	return strings.Join(names, ",")
}

// OSTs lists the indices of all OSTs that hold a part of the file, ascending.
func (g Granted) OSTs() []int {
	var all []int
	for _, p := range g.Parts {
		all = append(all, p.OSTs()...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Equal reports whether two layouts ask for the same.
func (l Layout) Equal(o Layout) bool { return slices.Equal(l.Components, o.Components) }

// OK reports whether all that was asked for is in effect, or there is nothing
// that stripes.
func (r Report) OK() bool { return r.Err == nil && len(r.Differences) == 0 }

// String returns in one line what was asked for and what is there.
func (r Report) String() string {
	switch {
	case !r.Striped && r.Err == nil:
		return r.Path + ": no striping on this file system"
	case r.Err != nil:
		return fmt.Sprintf("%s: asked for %s: %v", r.Path, r.Asked, r.Err)
	}
	s := fmt.Sprintf("%s: asked for %s, has %s", r.Path, r.Asked, describe(r.Granted))
	for _, d := range r.Differences {
		s += "; " + d.String()
	}
	return strings.TrimSpace(s)
}

// setDefault is SetDefault with a report on what the directory has then.
func setDefault(dir string, asked Layout) (Report, error) {
	r := Report{Path: dir, Asked: asked}
	err := SetDefault(dir, asked)
	if errors.Is(err, ErrRefused) {
		r.Striped, r.Err = true, err
	}
	if err == nil {
		err = readBack(&r)
	}
	return r, err
}

// askFor is ask for what a report has been asked for.
func askFor(fd int, r *Report) error {
	err := ask(fd, r.Path, r.Asked)
	if errors.Is(err, ErrRefused) {
		r.Striped, r.Err = true, err
	}
	return err
}

// readBack fills r with what the file or directory has.
func readBack(r *Report) error {
	granted, err := Read(r.Path)
	switch {
	case errors.Is(err, ErrNotLustre):
		return nil
	case err != nil && !errors.Is(err, ErrNoLayout):
		r.Striped, r.Err = true, err
		return err
	}
	r.Striped, r.Granted = true, granted
	r.compare()
	return nil
}
