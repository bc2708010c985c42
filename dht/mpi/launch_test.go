package mpi

import (
	"errors"
	"strings"
	"testing"
)

func TestLaunched(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want Launch
	}{
		"alone":                     {nil, Launch{}},
		"mpirun":                    {map[string]string{"OMPI_COMM_WORLD_SIZE": "4"}, Launch{4, "OMPI_COMM_WORLD_SIZE"}},
		"hydra":                     {map[string]string{"PMI_SIZE": "3"}, Launch{3, "PMI_SIZE"}},
		"srun":                      {map[string]string{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "8"}, Launch{3, "SLURM_STEP_NUM_TASKS"}},
		"srun, old":                 {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launch{8, "SLURM_NTASKS"}},
		"batch script":              {map[string]string{"SLURM_NTASKS": "8"}, Launch{}},
		"mpirun in a part of a job": {map[string]string{"OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launch{2, "OMPI_COMM_WORLD_SIZE"}},
		"nonsense":                  {map[string]string{"PMI_SIZE": "x"}, Launch{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Launched(func(k string) string { return c.env[k] }); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestLaunchCheckNamesTheFlag(t *testing.T) {
	if err := (Launch{3, "SLURM_NTASKS"}).Check(3, MPICH); err != nil {
		t.Error(err)
	}
	if err := (Launch{}).Check(1, MPICH); err != nil {
		t.Error(err)
	}
	for library, flag := range map[string]string{OpenMPI: "--mpi=pmix", MPICH: "--mpi=pmi2"} {
		err := Launch{3, "SLURM_NTASKS"}.Check(1, library)
		if !errors.Is(err, ErrWorldSize) || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", library, err)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]Version{
		"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\x00":  {OpenMPI, "4.1.4"},
		"MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7":      {MPICH, "4.0.2"},
		"MPI VERSION    : CRAY MPICH version 8.1.30.8 (ANL base 3.4)": {Name: "MPI VERSION CRAY MPICH"},
		"": {},
	} {
		if got := parseVersion(text); got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}

// What somebody set, even to nothing, stays; all else gets its value.
func TestSetUp(t *testing.T) {
	env := map[string]string{"OMPI_MCA_opal_event_include": ""}
	lookup := func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
	if err := setUp(lookup, func(name, value string) error { env[name] = value; return nil }); err != nil {
		t.Fatal(err)
	}
	if env["OMPI_MCA_opal_event_include"] != "" || env["OMPI_MCA_mpi_event_tick_rate"] != "100" {
		t.Errorf("the environment is %v", env)
	}
	failed := errors.New("no")
	if err := setUp(lookup, func(string, string) error { return failed }); err != nil {
		t.Errorf("nothing is left to set, and %v", err)
	}
	clear(env)
	if err := setUp(lookup, func(string, string) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("a variable that can not be set: %v", err)
	}
}
