package mpi_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/testing/testneed"
)

// library is one MPI that the tests run on.
type library struct {
	name     string // as scripts/mpi-build.sh has it
	packages string
	needs    []string
	launch   []string // without the number of ranks
	survives []string // the same, so that the others outlive a rank; nil where no launcher does that
}

var libraries = []library{
	{"openmpi", "openmpi-bin libopenmpi-dev pkg-config", []string{"mpirun.openmpi", "mpicc.openmpi", "pkg-config"},
		[]string{"mpirun.openmpi", "--bind-to", "none", "--oversubscribe", "-n"},
		[]string{"mpirun.openmpi", "--mca", "orte_enable_recovery", "1", "--bind-to", "none", "--oversubscribe", "-n"}},
	{"mpich", "mpich libmpich-dev pkg-config", []string{"mpiexec.mpich", "mpicc.mpich", "pkg-config"},
		[]string{"mpiexec.mpich", "-n"}, nil},
}

// TestUnderMPI builds the tests of spmd_test.go for each MPI and has its
// launcher run them.
func TestUnderMPI(t *testing.T) {
	if os.Getenv("CASCADE_TEST_MPI") != "" {
		t.Skip("this is a rank")
	}
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			l.need(t)
			program := l.build(t)
			l.run(t, l.launch, "3", program, "TestRanksConform", regexp.MustCompile(`(?s)(PASS: TestRanksConform .*){3}`))
			l.run(t, l.launch, "2", program, "TestSlowHold", regexp.MustCompile(`(?s)(PASS: TestSlowHold .*){2}`))
			l.run(t, l.launch, "3", program, "TestOneSidedProbe", regexp.MustCompile(`(?s)(PASS: TestOneSidedProbe .*){3}`))
			if l.survives != nil {
				l.run(t, l.launch, "3", program, "TestOneSidedConform", regexp.MustCompile(`(?s)(PASS: TestOneSidedConform .*){3}`))
				survived := regexp.MustCompile(`(?s)(rank [01] survived.*){2}`)
				l.run(t, l.survives, "3", program, "TestRankDies", survived)
				l.run(t, l.overTCP(), "3", program, "TestSendsToDead", survived)
			}
		})
	}
}

// overTCP is survives with ranks that talk as those of several hosts do.
func (l library) overTCP() []string {
	return append([]string{l.survives[0], "--mca", "btl", "tcp,self"}, l.survives[1:]...)
}

// need skips without the packages of an MPI; with CI=true it fails.
func (l library) need(t *testing.T) {
	for _, program := range append(l.needs, "cc") {
		testneed.Program(t, program, "apt-get install "+l.packages)
	}
}

func (l library) build(t *testing.T) string {
	out := filepath.Join(t.TempDir(), "ranks")
	build := exec.Command("scripts/mpi-build.sh", l.name, "test", out, "./dht/fabric/mpi")
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	build.Dir, build.Path, build.Err = root, filepath.Join(root, build.Args[0]), nil
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, said)
	}
	return out
}

// run starts one test on so many ranks. A launcher's status does not count when
// a rank was killed on purpose.
func (l library) run(t *testing.T, launch []string, ranks, program, test string, want *regexp.Regexp) {
	t.Run(test+"/"+ranks, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		args := append(launch[1:len(launch):len(launch)], ranks, program, "-test.v", "-test.run", "^"+test+"$", "-test.timeout", "150s")
		c := exec.CommandContext(ctx, launch[0], args...)
		// What the ranks set themselves is tested, not what is set here.
		c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "OMPI_MCA_") })
		c.Env = append(c.Env, "CASCADE_TEST_MPI=1", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
		c.WaitDelay = 5 * time.Second
		var said bytes.Buffer
		c.Stdout, c.Stderr = &said, &said
		err := c.Run()
		if slices.Contains(launch, "orte_enable_recovery") {
			err = nil
		}
		if err != nil || strings.Contains(said.String(), "FAIL") || !want.Match(said.Bytes()) {
			t.Errorf("%v: %v\n%s", c.Args, err, said.Bytes())
		}
	})
}
