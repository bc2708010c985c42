package bench

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strings"

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

func readMachine() Machine {
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
