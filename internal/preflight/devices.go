package preflight

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cascadekv/internal/config"
	"cascadekv/internal/uring"
)

// gpus lists device files of graphics processors.
func (m Machine) gpus() []string {
	found, _ := filepath.Glob(m.path("/dev/nvidia[0-9]*")) // the pattern is valid
	if _, err := os.Stat(m.path("/dev/kfd")); err == nil {
		found = append(found, "/dev/kfd")
	}
	return found
}

func (m Machine) gpu() Check {
	if found := m.gpus(); len(found) > 0 {
		return Okay("gpu", "%d device(s): %s", len(found), strings.Join(found, ", "))
	}
	return Okay("gpu", "none")
}

// slingshot looks whether a job's process may use the network adapters: each step has
// virtual networks of its own, which Slurm makes.
func (m Machine) slingshot() Check {
	const name = "slingshot"
	found, _ := filepath.Glob(m.path("/sys/class/cxi/cxi*")) // likewise
	vnis := m.getenv("SLINGSHOT_VNIS")
	switch {
	case len(found) == 0:
		return Okay(name, "none")
	case vnis != "":
		return Okay(name, "%d adapter(s), virtual networks %s", len(found), vnis)
	case m.getenv("SLURM_STEP_ID") != "":
		return Warning(name, "srun --network=job_vni, or single_node_vni on one node; TCP over it needs none", "%d adapter(s), but SLINGSHOT_VNIS is not set: MPI cannot use them in this step", len(found))
	}
	return Okay(name, "%d adapter(s); steps of srun have virtual networks on them", len(found))
}

// ring looks whether reads of the cold tier can go through io_uring.
func (m Machine) ring(c *config.Config) Check {
	const name = "io_uring"
	if err := m.tryRing(); err != nil {
		if c.Lustre.Dir == "" {
			return Okay(name, "%v; without lustre.dir nothing needs it", err)
		}
		return Warning(name, "sysctl kernel.io_uring_disabled=0, or allow it in the container's seccomp profile", "%v: cold blocks are read by threads, which is slower", err)
	}
	return Okay(name, "works")
}

func tryRing() error {
	r, err := uring.Open(1)
	if err != nil {
		return err
	}
	return r.Close(context.Background()) // nothing was read
}

// clock looks whether something keeps this node's clock right: which of two puts of a name
// counts is decided by the clocks of the ranks.
func (m Machine) clock(c *config.Config) Check {
	const name = "clock"
	ok, err := m.synced()
	switch {
	case err != nil:
		return Warning(name, "", "adjtimex: %v", err)
	case ok:
		return Okay(name, "kept right, as the kernel has it")
	case c.Peers.Fabric == "off" && c.Lustre.Dir == "":
		return Okay(name, "nothing is said to keep it right; a rank by itself does not mind")
	}
	return Warning(name, "start chronyd, ntpd or systemd-timesyncd", "nothing is said to keep it right: of two puts of a name on two ranks the later one by their clocks counts")
}

func synced() (bool, error) {
	state, err := unix.Adjtimex(new(unix.Timex))
	return state != unix.TIME_ERROR, err
}
