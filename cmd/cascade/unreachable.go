package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// unreachable is the error of a connection that was not made: what is at the
// address instead, and what to do.
type unreachable struct {
	error
	finding, remedy string
}

func (u unreachable) Unwrap() error { return u.error }

// explain makes an unreachable of the error of a connection.
func explain(network, address string, err error) unreachable {
	flag := "--listen "
	if network == "unix" {
		flag = "--socket "
	}
	u := unreachable{finding: "none answers at " + address, remedy: "start one with cascaded " + flag + address + ", or name another with --socket"}
	const another = "name another one with --socket"
	info, statErr := os.Stat(address)
	switch {
	case network != "unix":
	case errors.Is(err, fs.ErrPermission):
		uid, where := keeper(address)
		u.finding = fmt.Sprintf("%s is uid %d's, and %s lets this user not in", address, uid, where)
		u.remedy = fmt.Sprintf("have uid %d list this user's id, %d, in allow_uids, or %s", uid, os.Getuid(), another)
	case errors.Is(err, syscall.EPROTOTYPE), statErr == nil && info.Mode()&fs.ModeSocket == 0:
		u.finding, u.remedy = address+" is no socket of a rank", another
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		u.finding, u.remedy = "what listens at "+address+" takes no connections", "look at the log of the rank there, or "+another
	case statErr == nil:
		u.finding += ": a rank that has ended left the file"
	}
	u.error = fmt.Errorf("%s: %w; %s", u.finding, err, u.remedy)
	return u
}

// keeper returns who owns path, and the file or directory on the way to it that
// keeps this user out.
func keeper(path string) (uid uint32, where string) {
	for at := path; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil && at != filepath.Dir(at) {
			continue // in a directory that cannot be entered
		}
		if info == nil {
			return 0, path
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			uid = st.Uid
		}
		return uid, at
	}
}
