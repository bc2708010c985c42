package campaign

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"cascadekv/lustre/segment/format"
)

// writers returns the segments, as directory/name, that processes of this
// machine have open for writing. An incarnation's number makes them unique, so
// it does not matter by which path a process sees the campaign. Processes of
// other users are not seen, but cannot write to files of mode 0600 either.
func writers(proc string) map[string]bool {
	open := map[string]bool{}
	descriptors, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*")) // the pattern is valid
	for _, d := range descriptors {
		target, err := os.Readlink(d)
		if err != nil {
			continue
		}
		dir, name := filepath.Split(target)
		dir = filepath.Base(dir)
		if base := temporaryOf(name); base != "" {
			name = base
		}
		_, isDir := format.ParseDir(dir)
		_, isFile := format.ParseName(name)
		if isDir && isFile && writable(d) {
			open[dir+"/"+name] = true
		}
	}
	return open
}

// writable reports whether the descriptor …/fd/N is open for writing; true when
// that is not known.
func writable(descriptor string) bool {
	process, number := filepath.Dir(filepath.Dir(descriptor)), filepath.Base(descriptor)
	text, err := os.ReadFile(filepath.Join(process, "fdinfo", number))
	if err != nil {
		return !os.IsNotExist(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if value, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
			return err != nil || flags&syscall.O_ACCMODE != syscall.O_RDONLY
		}
	}
	return true
}
