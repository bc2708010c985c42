package job

import "testing"

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
