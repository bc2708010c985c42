package netio

import (
	"runtime"
	"testing"
	"time"
)

// TestStopEndsSleepInAKeptPlace: whoever stops the program, as the collector
// does, does not wait for a client.
func TestStopEndsSleepInAKeptPlace(t *testing.T) {
	w, _ := connPair(t, &spinner{})
	woken := make(chan bool)
	go func() { woken <- w.pollRaw(20 * time.Second) }()
	for {
		runtime.GC()
		select {
		case signal := <-woken:
			if !signal {
				t.Error("it slept to the end")
			}
			return
		default:
		}
	}
}
