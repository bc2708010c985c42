package memlimit

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Node is where the files of the kernel hang. It is safe for concurrent use.
type Node struct {
	Root string // "/", or a folder that a test has made up
}

// Limit is a bound of a control group.
type Limit struct {
	Bytes int64
	Group string // its path, "/" for the root; "" for no limit at all, and then Bytes is the largest number
}

// unlimited is the least number of bytes that stands for no limit: version 1
// writes one near the largest number.
const unlimited = 1 << 62

// group is one control group with a limit.
type group struct {
	Limit
	dir     string
	current string   // file of what it has
	cache   []string // lines of memory.stat that the kernel can take back
}

// Limit returns the least limit of memory that this process is under.
func (n Node) Limit() Limit {
	least := Limit{Bytes: math.MaxInt64}
	for _, g := range n.groups() {
		if g.Bytes < least.Bytes {
			least = g.Limit
		}
	}
	return least
}

// Total returns the memory of this machine, or the limit of the control groups that
// this process is in if that is less, in bytes.
func Total() int64 { return min(Machine(), Node{Root: "/"}.Limit().Bytes) }

// Machine returns the memory of this machine in bytes; 16 GiB where the kernel does
// not report it.
func Machine() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 16 << 30
	}
	return int64(uint64(info.Totalram) * uint64(info.Unit))
}

// Left returns how many bytes this process may still take, at least 0, and what
// bounds them, as part of a sentence: "control group /job_1 with a limit of
// 1073741824 bytes". Where nothing can be read, it is the largest number, of "".
func (n Node) Left() (left int64, of string) {
	left = math.MaxInt64
	for _, g := range n.groups() {
		held, err := g.held()
		if err != nil {
			continue // it has just ended, or is hidden from this process
		}
		if l := max(0, g.Bytes-held); l < left {
			left, of = l, fmt.Sprintf("control group %s with a limit of %d bytes", g.Group, g.Bytes)
		}
	}
	if available, err := n.Available(); err == nil && available < left {
		left, of = available, "the memory of the node"
	}
	return left, of
}

// Available returns what the node could give to programs without swapping, in
// bytes.
func (n Node) Available() (int64, error) {
	proc, err := procfs.NewFS(n.path("/proc"))
	if err != nil {
		return 0, fmt.Errorf("memlimit: %w", err)
	}
	info, err := proc.Meminfo()
	if err == nil && info.MemAvailableBytes == nil {
		err = errors.New("/proc/meminfo has no MemAvailable line")
	}
	if err != nil {
		return 0, fmt.Errorf("memlimit: %w", err)
	}
	return int64(*info.MemAvailableBytes), nil
}

func (n Node) path(p string) string { return filepath.Join(n.Root, p) }

// groups lists the control groups with a limit of memory that this process is in,
// and those above them.
func (n Node) groups() (all []group) {
	n.eachGroup("memory", func(dir, name string, v1 bool) {
		g := group{dir: dir, current: "memory.current", cache: []string{"active_file", "inactive_file", "slab_reclaimable"}}
		limits := []string{"memory.max", "memory.high"}
		if v1 {
			g = group{dir: dir, current: "memory.usage_in_bytes", cache: []string{"total_active_file", "total_inactive_file"}}
			limits = []string{"memory.limit_in_bytes"}
		}
		if g.Limit = limitIn(dir, name, limits); g.Group != "" {
			all = append(all, g)
		}
	})
	return all
}

// eachGroup calls f for the control groups of a controller that this process is
// in and for those above them, with the directory of their files, their path, and
// whether they are of version 1. A container may see its own as the root.
func (n Node) eachGroup(controller string, f func(dir, name string, v1 bool)) {
	membership, err := os.ReadFile(n.path("/proc/self/cgroup"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(membership)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] != "" && fields[1] != controller {
			continue
		}
		for at := filepath.Clean("/" + fields[2]); ; at = filepath.Dir(at) {
			f(n.path(filepath.Join("/sys/fs/cgroup", fields[1], at)), at, fields[1] != "")
			if at == "/" {
				break
			}
		}
	}
}

// Tasks returns the lowest limit of processes and threads (pids.max) of this
// process's control group and those above it; without one it is the largest
// number.
func (n Node) Tasks() int64 {
	least := int64(math.MaxInt64)
	n.eachGroup("pids", func(dir, _ string, _ bool) {
		if v, err := number(filepath.Join(dir, "pids.max")); err == nil { // "max" is none
			least = min(least, v)
		}
	})
	return least
}

// limitIn returns the least limit that a control group sets itself.
func limitIn(dir, name string, files []string) Limit {
	l := Limit{Bytes: math.MaxInt64}
	for _, file := range files {
		if v, err := number(filepath.Join(dir, file)); err == nil && v < l.Bytes && v < unlimited {
			l = Limit{Bytes: v, Group: name}
		}
	}
	return l
}

// held is what the group has that can not be taken back.
func (g group) held() (int64, error) {
	has, err := number(filepath.Join(g.dir, g.current))
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return has, nil // then all of it counts
	}
	for line := range bytes.Lines(stat) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		for _, c := range g.cache {
			if v, err := strconv.ParseInt(value, 10, 64); err == nil && name == c {
				has -= v
			}
		}
	}
	return max(0, has), nil
}

// number reads a file with one number in it; "max" is an error.
func number(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
