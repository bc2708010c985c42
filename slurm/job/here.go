package job

import (
	"slices"
	"strconv"
)

// Here is the number that Slurm has for the job of this process on this node: that of its
// component in a heterogeneous job. It is 0 outside Slurm. getenv is os.Getenv.
func Here(getenv func(string) string) int {
	if j, err := Read(getenv); err == nil {
		for _, c := range j.Components {
			if slices.Contains(c.Nodes, j.Node) {
				return c.Job
			}
		}
	}
	n, err := strconv.Atoi(getenv("SLURM_JOB_ID"))
	if err != nil || n < 0 {
		return 0
	}
	return n
}
