package cpus

import (
	"os"
	"runtime"
)

var count = runtime.GOMAXPROCS(0) // before anybody changes it

// Count is the number of cores: how many goroutines compute at the same time.
func Count() int { return count }

// waiters is for how many goroutines in the kernel the scheduler has a place
// from AllowWaiters on.
const waiters = 16

// fewest is the number of places where the environment asks for less. Half of them may be kept by goroutines that wait
// in the kernel (TryKeepPlace), and other waits keep theirs until the runtime's monitor looks, up to 10 ms later: four
// ranks on two cores took 8.9 s with one place each for what they do in 1.6 s with four.
const fewest = 4

// AllowWaiters makes room in Go's scheduler for waiters beside those that
// compute. A goroutine gives its place (its P) up in a system call that takes
// some 20 µs while others want it, as each does that copies a piece of a value;
// it is then continued on another thread and often on another core than the
// one in whose cache its socket's buffers lie. With places for all of them the
// kernel alone decides who runs where: values of 2 MiB by 8 connections on two
// cores arrived a quarter faster. The price is a few threads more.
//
// GOMAXPROCS in the environment is the number of cores, and of places too if it is not below fewest.
//
// It is called once, first of all in a program. It may be called from any goroutine.
func AllowWaiters() {
	places := waiters
	if os.Getenv("GOMAXPROCS") != "" {
		places = fewest
	}
	if count < places {
		runtime.GOMAXPROCS(places)
	}
}
