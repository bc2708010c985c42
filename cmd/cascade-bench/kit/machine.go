package kit

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is where a measurement was taken.
type Machine struct {
	CPU     string `json:"cpu"`
	CPUs    int    `json:"cpus"` // that this process may use
	Memory  uint64 `json:"memory_bytes"`
	Kernel  string `json:"kernel"`
	Go      string `json:"go"`
	LoadAvg string `json:"load_average"` // when the measurement began
}

// ReadMachine describes this machine.
func ReadMachine() Machine {
	m := Machine{CPU: cpuModel(), CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version()}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = uint64(info.Totalram) * uint64(info.Unit)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if p, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.LoadAvg = strings.Join(strings.Fields(string(p))[:3], " ")
	}
	return m
}

// cpuModel is the processor's name, or its architecture where the kernel has
// no name for it.
func cpuModel() string {
	p, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for s := bufio.NewScanner(bytes.NewReader(p)); s.Scan(); {
		if key, value, _ := strings.Cut(s.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// CPUTime is what all threads of this process have used.
func CPUTime() time.Duration { return cpuClock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// ThreadTime is the CPU time that the calling thread has used.
func ThreadTime() time.Duration { return cpuClock(unix.CLOCK_THREAD_CPUTIME_ID) }

func cpuClock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Since is the time since began, in seconds, rounded.
func Since(began time.Time) float64 { return Round(time.Since(began).Seconds()) }
