package layout

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors of this package. Test with errors.Is.
var (
	ErrOption    = errors.New("layout: bad lfs setstripe option")
	ErrRefused   = errors.New("layout: the file system refuses the layout")
	ErrNotLustre = errors.New("layout: no striping on this file system")
	ErrNoHints   = errors.New("layout: this file system takes no such hint")
	ErrNoLayout  = errors.New("layout: no layout of its own") // a directory without a default, a file without objects
	ErrBadLayout = errors.New("layout: not a layout this program can read")
)

// OptionError is an option of a setstripe line that cannot be. It matches
// ErrOption.
type OptionError struct {
	Option  string // "-S"; "" when the line as a whole is meant
	Value   string // as written; "" when it has none
	Problem string
	Remedy  string
}

// Error names the option, its value, the problem and the remedy.
func (e *OptionError) Error() string {
	what := e.Option
	if e.Value != "" {
		what += " " + e.Value
	}
	if e.Option != "" {
		what += ": "
	}
	s := what + e.Problem
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// Is reports whether target is ErrOption.
func (e *OptionError) Is(target error) bool { return target == ErrOption }

// problems gathers what is wrong with a layout.
type problems []error

func (p *problems) add(option, value, problem, remedy string) {
	*p = append(*p, &OptionError{option, value, problem, remedy})
}

// RefusedError is a layout that a Lustre file system did not take. It matches
// ErrRefused and the errno.
type RefusedError struct {
	Path  string
	Asked Layout
	Err   error
}

// Error names the path, the layout, the kernel's error, and what to check.
func (e *RefusedError) Error() string {
	s := fmt.Sprintf("layout: %s: setstripe %s: %v", e.Path, e.Asked, e.Err)
	if remedy := remedyOf(e.Err); remedy != "" {
		s += "; " + remedy
	}
	return s
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Unwrap gives the kernel's error.
func (e *RefusedError) Unwrap() error { return e.Err }

func remedyOf(err error) string {
	switch {
	case errors.Is(err, unix.EINVAL):
		return "does the pool exist (lfs pool_list), and has it OSTs that are active (lfs osts)?"
	case errors.Is(err, unix.EREMOTEIO):
		return "an OST of the layout is inactive: lfs osts lists them"
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EALREADY):
		return "the file has a layout already: it is chosen when a file is made"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "only the owner of a directory may set its default; or the site restricts setstripe (llite.*.enable_setstripe_gid): ask its administrators, or leave the keys empty"
	case errors.Is(err, unix.ENOSPC):
		return "no OST that the layout allows has room: lfs df lists them"
	case errors.Is(err, unix.EFBIG), errors.Is(err, unix.E2BIG):
		return "the layout is too large for this file system: use fewer stripes or components"
	}
	return ""
}

// isUnstriped reports whether err is the answer of a file system without
// stripes.
func isUnstriped(err error) bool {
	return errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

func badLayout(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadLayout, fmt.Sprintf(format, args...))
}
