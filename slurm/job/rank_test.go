package job

import (
	"strings"
	"testing"
)

func TestRank(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		rank int
		ok   bool
	}{
		"by hand":          {nil, 0, false},
		"srun":             {map[string]string{"SLURM_PROCID": "3"}, 3, true},
		"mpirun in a job":  {map[string]string{"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "2"}, 2, true},
		"mpiexec of MPICH": {map[string]string{"PMI_RANK": "1"}, 1, true},
		"no number":        {map[string]string{"PMI_RANK": "one"}, 0, false},
		"negative":         {map[string]string{"PMI_RANK": "-1", "SLURM_PROCID": "4"}, 4, true},
	} {
		rank, ok := Rank(func(k string) string { return c.env[k] })
		if rank != c.rank || ok != c.ok {
			t.Errorf("%s: rank %d, %v; want %d, %v", name, rank, ok, c.rank, c.ok)
		}
	}
}

func TestHere(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		more []string
		want int
	}{
		"outside Slurm":           {"", nil, 0},
		"a batch script":          {"batch.env", nil, 1},
		"a component":             {"het-step.env", nil, 3},
		"its first":               {"het.env", nil, 2},
		"a node of no component":  {"het.env", []string{"SLURMD_NODENAME=other"}, 2},
		"variables of other form": {"batch.env", []string{"SLURM_JOB_NODELIST=n["}, 1},
		"no number":               {"", []string{"SLURM_JOB_ID=x"}, 0},
		"below 0":                 {"", []string{"SLURM_JOB_ID=-1"}, 0},
		"too large":               {"", []string{"SLURM_JOB_ID=" + strings.Repeat("9", 30)}, 0},
	} {
		if got := Here(environment(t, c.file, c.more...)); got != c.want {
			t.Errorf("%s: job %d, want %d", name, got, c.want)
		}
	}
}
