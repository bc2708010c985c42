package lease

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Process names one process of one node for good: a process id may come again,
// together with the rest it does not.
type Process struct {
	Boot  [16]byte // boot id of the node; zero when unknown
	Space uint64   // inode number of the pid namespace; 0 when unknown
	ID    uint64
	Start uint64 // clock ticks since boot
	Host  string // for people
}

// maxHost bounds a host name in a token.
const maxHost = 64

// Self is the process that asks. What the system does not report is zero.
var Self = sync.OnceValue(func() Process { return process("/proc", os.Getpid()) })

// Killed is a process of this node that does not exist, for tests: what a store
// with it leaves when it is not closed counts as left by a crash.
func Killed() Process {
	p := Self()
	p.ID, p.Start, p.Host = 1<<22+1, 1, "node" // above the largest id that Linux gives
	return p
}

// process describes one of this node's, as proc shows it.
func process(proc string, id int) Process {
	p := Process{ID: uint64(id)}
	if text, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id")); err == nil {
		digits := bytes.ReplaceAll(bytes.TrimSpace(text), []byte("-"), nil)
		if len(digits) != hex.EncodedLen(len(p.Boot)) {
			digits = nil
		}
		if _, err := hex.Decode(p.Boot[:], digits); err != nil {
			p.Boot = [16]byte{}
		}
	}
	if link, err := os.Readlink(filepath.Join(proc, "self/ns/pid")); err == nil {
		if _, err := fmt.Sscanf(link, "pid:[%d]", &p.Space); err != nil {
			p.Space = 0
		}
	}
	if st, err := readStat(proc, p.ID); err == nil {
		p.Start = st.start
	}
	p.Host, _ = os.Hostname()
	p.Host = cleanHost(p.Host)
	return p
}

// cleanHost makes name fit for a token.
func cleanHost(name string) string {
	name = strings.Map(func(r rune) rune {
		if isHostByte(r) {
			return r
		}
		return '_'
	}, name)
	if name == "" {
		return "_"
	}
	return name[:min(len(name), maxHost)]
}

func isHostByte(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_'
}

// stat is the content of /proc/PID/stat.
type stat struct {
	zombie bool // ended, and nobody has asked how
	start  uint64
}

func readStat(proc string, id uint64) (stat, error) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(id, 10), "stat"))
	if err != nil {
		return stat{}, err
	}
	// The second field is a name in parentheses, which may hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return stat{}, fmt.Errorf("segment: %d fields in /proc/%d/stat", len(fields), id)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	// A zombie whose threads are still at work has not ended.
	return stat{zombie: fields[0] == "Z" && fields[17] == "1", start: start}, err
}

// Gone reports whether it is certain that p does not exist any more, which only
// a process of the same node and pid namespace can find out.
func (p Process) Gone() bool { return p.gone("/proc", Self()) }

func (p Process) gone(proc string, self Process) bool {
	if p.Boot != self.Boot || p.Boot == [16]byte{} || p.Space != self.Space || p.Space == 0 {
		return false
	}
	if st, err := readStat(proc, self.ID); err != nil || st.start != self.Start {
		return false // proc hides processes, or shows those of another namespace
	}
	st, err := readStat(proc, p.ID)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	return err == nil && (st.zombie || st.start != p.Start)
}
