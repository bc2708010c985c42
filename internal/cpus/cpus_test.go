package cpus

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// A process of its own shows what AllowWaiters does: it can be done once.
func TestMain(m *testing.M) {
	if os.Getenv("CPUS_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	AllowWaiters()
	_, _ = os.Stdout.WriteString(strconv.Itoa(Count()) + " " + strconv.Itoa(runtime.GOMAXPROCS(0)))
}

func child(t *testing.T, env ...string) (count, places int) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(command.Env, append(env, "CPUS_TEST_CHILD=1")...)
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(out))
	if len(words) != 2 {
		t.Fatalf("the child wrote %q", out)
	}
	count, _ = strconv.Atoi(words[0])
	places, _ = strconv.Atoi(words[1])
	return count, places
}

func TestWaitersHavePlacesBesideTheCores(t *testing.T) {
	count, places := child(t)
	if count != Count() || count > runtime.NumCPU() {
		t.Errorf("%d cores, of the machine's %d and this process's %d", count, runtime.NumCPU(), Count())
	}
	if want := max(count, waiters); places != want {
		t.Errorf("%d places for goroutines, want %d", places, want)
	}
}

func TestTheEnvironmentDecides(t *testing.T) {
	for set, want := range map[string]int{"1": fewest, "5": 5} {
		count, places := child(t, "GOMAXPROCS="+set)
		if strconv.Itoa(count) != set || places != want {
			t.Errorf("GOMAXPROCS=%s: %d cores, %d places, want %d", set, count, places, want)
		}
	}
}
