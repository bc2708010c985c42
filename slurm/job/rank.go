package job

import "strconv"

// rankVariables give a process its number among those that were started
// together, in the order of preference: mpirun inside a Slurm job speaks for
// itself.
var rankVariables = []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}

// Rank is this process's number among those that mpirun or srun started
// together; false when neither did. getenv is os.Getenv.
func Rank(getenv func(string) string) (int, bool) {
	for _, name := range rankVariables {
		if n, err := strconv.Atoi(getenv(name)); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}
