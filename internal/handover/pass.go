package handover

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxBytes bounds what Take reads: 150 connections with 64 MiB of jobs each.
const maxBytes = 16 << 30

// Descriptors lists all descriptors of a state.
func (s *State) Descriptors() []int {
	var fds []int
	for _, l := range s.Listeners {
		fds = append(fds, int(l.FD))
	}
	if s.Arena.FD != 0 {
		fds = append(fds, int(s.Arena.FD))
	}
	for i := range s.Conns {
		x := &s.Conns[i]
		fds = append(fds, int(x.FD))
		for _, fd := range x.Descriptors {
			fds = append(fds, int(fd))
		}
		if x.Holds >= 0 {
			fds = append(fds, int(x.Holds))
		}
		for _, r := range x.Regions {
			fds = append(fds, int(r.FD))
			if r.Notify >= 0 {
				fds = append(fds, int(r.Notify))
			}
		}
	}
	return fds
}

// ArenaFile is the arena file that is handed over, nil for none. The caller owns
// it, and calls this once.
func (s *State) ArenaFile() *os.File {
	if s.Arena.FD == 0 {
		return nil
	}
	return os.NewFile(uintptr(s.Arena.FD), s.Arena.Path)
}

// Write puts the state into a sealed memfd, which the caller closes.
func Write(s *State) (fd int, err error) {
	fd, err = unix.MemfdCreate("cascade-handover", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("handover: %w", os.NewSyscallError("memfd_create", err))
	}
	for p := Encode(s); len(p) > 0; {
		n, err := unix.Write(fd, p)
		if err != nil && !errors.Is(err, unix.EINTR) {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("handover: %w", os.NewSyscallError("write", err))
		}
		p = p[max(n, 0):]
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("handover: %w", os.NewSyscallError("fcntl", err))
	}
	return fd, nil
}

// Pass has the descriptors of a state, and the memfd that Write made of it, stay
// open across exec; undo takes that back, for when exec fails. The caller sees to
// it that no other program is started meanwhile (syscall.ForkLock).
func Pass(s *State, memfd int) (undo func(), err error) {
	open := append(s.Descriptors(), memfd)
	undo = func() { _ = closeOnExec(open, true) } // they could be changed before
	if err := closeOnExec(open, false); err != nil {
		undo()
		return nil, err
	}
	return undo, nil
}

// closeOnExec sets or clears the flag of some descriptors, all of them.
func closeOnExec(fds []int, on bool) error {
	flag := 0
	if on {
		flag = unix.FD_CLOEXEC
	}
	var failed error
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag); err != nil {
			failed = errors.Join(failed, fmt.Errorf("handover: descriptor %d: %w", fd, err))
		}
	}
	return failed
}

// Take reads the state that an earlier program of this process passed, closes
// its memfd, and has the descriptors closed at the next exec. On error no
// descriptor is left open that was passed. Errors: ErrDamaged, ErrVersion.
func Take(fd int) (*State, error) {
	s, err := take(fd)
	_ = unix.Close(fd)
	if err == nil {
		err = closeOnExec(s.Descriptors(), true)
	}
	if err != nil {
		closePassed()
		return nil, err
	}
	return s, nil
}

func take(fd int) (*State, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%w: descriptor %d: %w", ErrDamaged, fd, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Size > maxBytes {
		return nil, fmt.Errorf("%w: descriptor %d is no file of this user", ErrDamaged, fd)
	}
	p := make([]byte, st.Size)
	for at := 0; at < len(p); {
		n, err := unix.Pread(fd, p[at:], int64(at))
		if n <= 0 && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("%w: descriptor %d: %w", ErrDamaged, fd, err)
		}
		at += max(n, 0)
	}
	s, err := Decode(p)
	if err == nil && int(s.PID) != os.Getpid() {
		return nil, fmt.Errorf("%w: it is for process %d, this is %d", ErrDamaged, s.PID, os.Getpid())
	}
	return s, err
}

// closePassed closes all descriptors that came through exec but the standard
// ones. This program's own are all closed on exec, so that they can be distinguished.
func closePassed() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	var fds []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			fds = append(fds, fd)
		}
	}
	slices.Sort(fds)
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
