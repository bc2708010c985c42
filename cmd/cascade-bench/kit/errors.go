package kit

import "errors"

// Errors of all benchmarks. Test with errors.Is.
var (
	ErrWrong     = errors.New("bench: wrong bytes came back")
	ErrTooSmall  = errors.New("bench: values are too small to tell apart")
	ErrBadOption = errors.New("bench: bad option")
	ErrStart     = errors.New("bench: a server did not start")
	ErrNoFio     = errors.New("fio is not installed: apt-get install fio")
	ErrNoRank    = errors.New("bench: cascaded is not beside this program nor in PATH: make build")
)
