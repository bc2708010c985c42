package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cascadekv/internal/handover"
)

// The words of a command line that are for programs.
const (
	checkWord    = "--check-handover"
	handoverWord = "--handover="
	endWord      = "--then-end" // a signal to end has come meanwhile
)

// Program is how the program of this process was started, so that another one can
// take its place. The zero value has no predecessor and no path.
type Program struct {
	Path string   // "" when it could not be found
	Args []string // without the words for programs

	State    *handover.State // of the program before this one in this process; nil: none
	StateErr error           // why that could not be read
	Ends     bool            // the program before this one was signalled to end

	Signals Signals // required by Replace and Restart
}

// Signals gives the process's signals back to the system for the time of an exec.
type Signals struct {
	Stop, Resume func()
	Ending       func() bool // whether a signal to end was received, once stopped
}

// Started reads the words for programs from the arguments of this one. check: an
// ability is asked for.
func Started(args []string) (p Program, check bool) {
	p.Path, p.Args = ownPath(os.Args[0]), args
	switch {
	case len(args) > 0 && args[0] == checkWord:
		p.Args = args[1:]
		return p, true
	case len(args) > 0 && strings.HasPrefix(args[0], handoverWord):
		p.Args = args[1:]
		fd, err := strconv.Atoi(strings.TrimPrefix(args[0], handoverWord))
		if err == nil && fd < 3 {
			err = fmt.Errorf("%w: %d is no descriptor of a state", handover.ErrDamaged, fd)
		}
		if err == nil {
			p.State, err = handover.Take(fd)
		}
		p.StateErr = err
		if len(p.Args) > 0 && p.Args[0] == endWord {
			p.Args, p.Ends = p.Args[1:], true
		}
	}
	return p, false
}

// ownPath returns the path of this program as it was called, since links in it may
// lead to another version later, or as the kernel has it where the call has none.
func ownPath(called string) string {
	running, err := os.Executable()
	if err != nil {
		return ""
	}
	found, err := exec.LookPath(called)
	if err != nil {
		return running
	}
	if found, err = filepath.Abs(found); err != nil {
		return running
	}
	a, errA := os.Stat(found)
	b, errB := os.Stat("/proc/self/exe")
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		return running
	}
	return found
}

// Replace runs another program in this process, with st, which is in the memfd fd
// (handover.Write). It returns only when that fails, and then everything is as
// before. A signal to end that this program has received is passed on.
func (p Program) Replace(path string, st *handover.State, fd int) error {
	// No other program may be started meanwhile: it would inherit descriptors.
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	undo, err := handover.Pass(st, fd)
	if err != nil {
		return err
	}
	defer undo()
	var files unix.Rlimit // exec lowers the limit to what it was before this program raised it
	limited := unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil
	p.Signals.Stop()
	defer p.Signals.Resume()
	words := []string{path, handoverWord + strconv.Itoa(fd)}
	if p.Signals.Ending() {
		words = append(words, endWord)
	}
	err = syscall.Exec(path, append(words, p.Args...), os.Environ())
	if limited {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &files) // it was that already
	}
	return fmt.Errorf("%s: %w", path, os.NewSyscallError("execve", err))
}

// Restart runs this program anew in this process, without a state. It returns only
// when that fails, or when a signal to end was received; the signals then have the
// system's actions.
func (p Program) Restart() error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	if p.Signals.Ending() {
		return errEnding
	}
	p.Signals.Stop()
	return os.NewSyscallError("execve", syscall.Exec(p.Path, append([]string{p.Path}, p.Args...), os.Environ()))
}
