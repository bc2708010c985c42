//go:build cgo

package malloc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// childVariable makes this program a child that lets many threads allocate and
// prints how many arenas it has then: they are for good, so each case is a
// process of its own.
const childVariable = "MALLOC_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	strain(16)
	n, err := arenas()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(n)
}

// strain makes a Pebble cache on each of n threads at once.
func strain(n int) {
	var all, ready sync.WaitGroup
	ready.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with it, its arena does not
			ready.Done()
			ready.Wait()
			pebble.NewCache(1 << 20).Unref()
		})
	}
	all.Wait()
}

// heapMax is how much address space glibc reserves for an arena, and its
// alignment: HEAP_MAX_SIZE on 64-bit machines.
const heapMax = 64 << 20

// arenas counts the arenas beside the main one: mappings of heapMax at a
// multiple of it, of which the beginning is in use and the rest is not.
func arenas() (n int, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var began, ended uint64 // of the readable mapping before
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		span, rest, _ := strings.Cut(lines.Text(), " ")
		low, high, _ := strings.Cut(span, "-")
		from, err := strconv.ParseUint(low, 16, 64)
		if err != nil {
			return 0, err
		}
		to, err := strconv.ParseUint(high, 16, 64)
		if err != nil {
			return 0, err
		}
		switch {
		case strings.HasPrefix(rest, "rw-p 00000000 00:00 0"):
			began, ended = from, to
		case strings.HasPrefix(rest, "---p") && from == ended && began%heapMax == 0 && to == began+heapMax:
			n++
		}
	}
	return n, lines.Err()
}

// childArenas is how many arenas a child has in an environment.
func childArenas(t *testing.T, env ...string) int {
	t.Helper()
	command := exec.Command(os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "MALLOC_ARENA_MAX=") && !strings.HasPrefix(v, "GLIBC_TUNABLES=") {
			command.Env = append(command.Env, v)
		}
	}
	command.Env = append(append(command.Env, env...), childVariable+"=1")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(string(out))
	if err != nil {
		t.Fatalf("the child wrote %q", out)
	}
	return n
}

func TestAllThreadsShareOneArena(t *testing.T) {
	one := childArenas(t, "MALLOC_ARENA_MAX=1") // the race detector's memory may look like another
	if n := childArenas(t); n != one {
		t.Errorf("%d arenas beside the main one, want %d as with MALLOC_ARENA_MAX=1", n, one)
	}
}

// It also shows that the other test would see arenas.
func TestTheEnvironmentDecidesHowManyArenas(t *testing.T) {
	for _, env := range []string{"MALLOC_ARENA_MAX=8", "GLIBC_TUNABLES=glibc.malloc.arena_max=8"} {
		if n := childArenas(t, env); n < 2 {
			t.Errorf("%s: %d arenas beside the main one", env, n)
		}
	}
}
